"""Runtimes: what runs the network and owns weights and the KV pool, behind one protocol
(`runtime.base`)."""
