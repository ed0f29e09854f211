"""Wave -> codes by the Whisper encoder with its quantiser."""
