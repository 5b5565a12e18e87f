"""What a run says: data first (report.json, sweep.json), then the console."""
