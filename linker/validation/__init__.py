"""The validator's work inside the sidecar: only the link controller has it done.

Lives here: one-shot and continuous validation of a link (`runner`), what a promote asks for (`promote`), which replicas are
due and from where on (`planner`), one run and what becomes of its results (`runs`), the one validator that all links share
(`validator`), who has it (`turns`), its process under control (`process`, `child`), what that needs of the machine
(`needs`), and what is left as evidence (`result_book`, `samples`, `evidence`).
Does not live here: reading and comparing logs (validator/), what a result means for a mirror (controller.validations).
"""
