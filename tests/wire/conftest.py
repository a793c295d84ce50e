from tests.loops import under_both_loops

pytest_asyncio_loop_factories = under_both_loops(
    "test_connecting.py", "test_low_water.py", "test_pieces.py", "test_server.py", "test_server_limits.py"
)
