"""Speech codecs: wave <-> codes; streaming decoders and vocoders behind `codec.base`."""
