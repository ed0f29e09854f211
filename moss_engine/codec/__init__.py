"""Speech codecs: wave <-> codes, with streaming decoders and vocoders behind one protocol (`codec.base`)."""
