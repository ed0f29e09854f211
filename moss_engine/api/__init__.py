"""Values that cross the service: requests, events, errors, modes and figures."""
