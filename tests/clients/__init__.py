"""The client matrix: each library writes and reads through link, move and promote. `python -m tests.clients`"""
