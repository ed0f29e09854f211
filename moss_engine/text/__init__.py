"""Text in and out: prompts, tokenizer, and written English as it is spoken."""
