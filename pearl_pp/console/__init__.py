"""What a run reads and writes besides its options: prompts, text, tables, the JSON record."""
