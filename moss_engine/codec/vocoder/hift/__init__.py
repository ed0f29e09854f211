"""HiFT, the vocoder of the published codec."""
