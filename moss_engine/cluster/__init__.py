"""Several replicas as one service: placement, admission, resumption, over Ray Serve."""
