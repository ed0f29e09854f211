"""One step for many sequences: scheduling, KV blocks, sequences of rows."""
