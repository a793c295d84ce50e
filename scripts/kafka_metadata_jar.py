"""Print the path of the kafka-metadata jar that generate_metadata_schemas.py reads, fetching it if need be."""

import asyncio

from lab.clusters.kafka_jars import ensure_distribution

distribution = asyncio.run(ensure_distribution())
print(distribution.home / "libs" / f"kafka-metadata-{distribution.version}.jar")
