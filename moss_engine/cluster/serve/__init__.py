"""The fleet on Ray Serve: deployment, router and handle. Imported once a cluster is asked for."""
