"""Sound files, PCM, voice activity and turn taking."""
