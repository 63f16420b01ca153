"""The server: OpenAI's HTTP protocol before one engine, and the page where you press Enter."""
