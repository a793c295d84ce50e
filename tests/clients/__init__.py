"""The client matrix: each library writes and reads through link, move, promote and switch. `python -m tests.clients`

`programs/` is one small application per library, all behind one line protocol (said there); `build.py` makes
them runnable; `catalog.py` says which there are. `program.py` runs one, `stage.py` is where they run.
`producers.py`, `hand_over.py` and `switches.py` are the scenarios, `events.py` is what befalls the target in them,
`plain.py` the same without a link, `leaders.py` a change of leaders there. `judge.py` is pure.
"""
