"""The modes of the diff: which cases each has, and how a case is driven through a forward."""
