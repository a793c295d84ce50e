from tests.loops import under_both_loops

pytest_asyncio_loop_factories = under_both_loops("test_transport.py")
