"""The validator's work inside the sidecar: only the link controller has it done.

Lives here: which replicas are due and from where on (`planner`), the validator process under control (`process`, `turns`),
one run and what becomes of its results (`runs`), one-shot and continuous validation of a link (`runner`), what a promote
asks for (`promote`), and what is left of it as evidence (`evidence`, `samples`).
Does not live here: reading and comparing logs (validator/), what a result means for a mirror (controller.validations).
"""
