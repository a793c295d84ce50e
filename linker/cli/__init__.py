"""The command line: `linker`.

- `acl`: `linker acl ...`
- `acl_tables`: rights, quotas and users as tables for people
- `apply`: `linker apply` and `linker export`: links as a file
- `apply_steps`: carrying out the steps of a link file, and what came of each
- `app`: the command tree, and the commands that stand at its root
- `controller`: `linker controller ...`
- `convert`: `linker convert ...`: files of other tools as link files; asks nobody
- `departing`: following a sidecar that drains or leaves: a line that is redrawn on a terminal, lines elsewhere; on
  stderr
- `entry`: entry point of the console script: runs the app and turns every failure into one line and an exit code
- `examine`: `linker doctor --config`: both clusters, before there is a sidecar
- `failover`: `linker mirror failover`: the only way out of a source that is dead
- `fleet_tables`: sidecars and their link controller, as tables for people
- `follow`: following something until it is over: lines for logs and pipes, a redrawn line, or a screen; all on stderr
- `group`: `linker group ...`
- `group_tables`: groups as tables for people
- `java_properties`: properties files as Java reads them
- `layout`: how wide text is laid out for a terminal: which columns give way, where cells are wrapped, and blocks
  where no table fits
- `link`: `linker link ...`
- `link_export`: links as the text of a link file, without secrets
- `link_file`: the link file: its keys, and reading it; each mistake is one line with its place
- `link_plan`: the difference between a link file and the links that are there, as a list of steps
- `mirror`: `linker mirror ...`
- `mirrormaker`: properties of MirrorMaker 2 as entries of a link file, with comments
- `mirrormaker_reasons`: its keys that have no counterpart, and why none is needed
- `options`: options that many commands share, and how they become a client and an output format
- `output`: how answers are printed: aligned tables, JSON or YAML on stdout, notes on stderr
- `promote_progress`: following a promote or a failover until it is over, and its exit code
- `promote_tables`: promotes and failovers, planned and under way, as tables for people
- `reassign`: `linker mirror reassign`: other brokers of the target for the replicas of mirrors
- `restore`: `linker mirror restore`: a source that has come back after a failover follows the target
- `run`: `linker run`, apart from the other commands: building them takes time, and clients wait while a sidecar
  starts
- `run_command`: `linker run` for typer: its help, and its complaints about arguments
- `sidecar`: `linker sidecar ...`
- `store`: `linker store ...`: work on a state store while no sidecar runs
- `switch`: `linker mirror sync`, `linker mirror switch` and `linker mirror finish`: the other cluster becomes the owner of
  topics, in either direction
- `tables`: links, mirrors and the status as tables for people
- `topology`: `linker topology`: the clusters, numbered, and the ways that topics come
- `validate`: `linker validate LINK [TOPIC]...`, `linker validate status`, `linker validate report`
- `validation_tables`: results of validation, as tables for people
- `verdict`: `linker doctor` for people: a block per finding, the worst last, where a terminal shows it, and the
  verdict below them
- `watch`: `linker status --watch`: the status redrawn in place, with rates between two readings
"""

from __future__ import annotations

from linker.cli.entry import main

__all__ = ["main"]
