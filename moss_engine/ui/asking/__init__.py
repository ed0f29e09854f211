"""Questions on their way: refusals, replay files, the forecast, and the relay to the browser."""
