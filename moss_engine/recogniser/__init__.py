"""Recognisers: what was said -> text, for checkpoints that cannot listen themselves."""
