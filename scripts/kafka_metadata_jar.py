"""Print the path of the kafka-metadata jar that generate_metadata_schemas.py reads, fetching it if need be."""

import asyncio

from linker.demo.kafka_dist import ensure_distribution

distribution = asyncio.run(ensure_distribution())
print(distribution.home / "libs" / f"kafka-metadata-{distribution.version}.jar")
