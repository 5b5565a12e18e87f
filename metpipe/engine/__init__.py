"""What executes: checkpoints, kernel sets, pools, the legacy forwards and the circuit programs."""
