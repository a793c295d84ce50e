"""`linker demo`: a source and a target, live clients, link, mirror, promote, switch, and a report.

- `demo`: `linker demo`: live clients move from one real cluster to another, and every record is accounted for
- `group_moves`: how consumer groups came through a move: records they missed, records they read twice, how long they
  read nothing
- `progress`: how the demonstration shows where it is: a live line on a terminal, one line per phase elsewhere
- `report`: the demonstration's result: report.json, the table under it, and what makes it a failure
- `scenario`: the demonstration from the first cluster's start to the last check
- `switch_report`: a switch as clients saw it that were never restarted, and whether both clusters have the same bytes
- `switching`: a topic that is switched to the target, back, and there again, and its clients
- `waits`: waits between the steps of the demonstration; each has a deadline and says then how far it came
"""
