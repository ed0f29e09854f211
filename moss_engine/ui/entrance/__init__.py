"""Between the network and the page: connections, the password, which requests pass, the end."""
