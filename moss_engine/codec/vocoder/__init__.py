"""Mel -> samples: source-filter, BigVGAN and HiFT, streamed."""
