import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.utils.AppInfoParser;

/** kafka-clients, in whatever version is on the class path: producer, transactions, consumer. */
public final class Client {
    private static final String STRINGS = "org.apache.kafka.common.serialization.String";
    private static final String FILLER = "the quick brown fox jumps over the lazy dog ".repeat(2);
    private static final int MAX_BURST = 100;
    private static final long TICK_MS = 10;

    private final Lines lines;
    private final String topic;
    private final int partitions;
    private final int rate;
    private final long began = System.nanoTime();
    private long sent;
    private long next;

    private Client(Lines lines) {
        this.lines = lines;
        topic = lines.text("topic");
        partitions = lines.number("partitions", 1);
        rate = lines.number("rate", 100);
        next = lines.number("first", 0);
    }

    public static void main(String[] arguments) throws Exception {
        Lines lines = new Lines(arguments);
        lines.stopOnSignal(Thread.currentThread());
        Client client = new Client(lines);
        try {
            switch (lines.text("role")) {
                case "producer": client.produce(); break;
                case "transactions": client.transactions(); break;
                case "consumer": client.consume(); break;
                default: throw new IllegalArgumentException("no role " + lines.text("role"));
            }
        } catch (KafkaException error) {
            lines.error("error", error);
            throw error;
        }
    }

    private KafkaProducer<String, String> producer(String... more) {
        Properties properties = lines.properties(
            "acks", "all", "enable.idempotence", "true", "linger.ms", "5", "compression.type", "snappy",
            "key.serializer", STRINGS + "Serializer", "value.serializer", STRINGS + "Serializer");
        for (int index = 0; index < more.length; index += 2) {
            properties.put(more[index], more[index + 1]);
        }
        KafkaProducer<String, String> producer = new KafkaProducer<>(properties);
        lines.say("ready", ",\"version\":" + Lines.quoted(AppInfoParser.getVersion()));
        return producer;
    }

    /** The numbers of the records that are due now. */
    private List<Long> due() {
        long count = Math.min((System.nanoTime() - began) * rate / 1_000_000_000L - sent, MAX_BURST);
        List<Long> due = new ArrayList<>();
        for (long index = 0; index < count; index++) {
            due.add(next++);
        }
        sent += due.size();
        return due;
    }

    private ProducerRecord<String, String> record(long number) {
        String value = "live|" + lines.text("name") + "|" + number + "|" + FILLER;
        return new ProducerRecord<>(topic, (int) (number % partitions), null, value);
    }

    private void produce() throws InterruptedException {
        try (KafkaProducer<String, String> producer = producer()) {
            while (!lines.stopping()) {
                for (long number : due()) {
                    producer.send(record(number), (metadata, error) -> {
                        if (error == null) {
                            lines.acked(number, metadata.hasOffset() ? metadata.offset() : -1);
                        } else {
                            lines.failed(Long.toString(number), true, error);
                        }
                    });
                }
                Thread.sleep(TICK_MS);
                lines.flush();
            }
            producer.flush();
        }
        lines.flush();
        lines.say("closed", ",\"next\":" + next);
    }

    private void transactions() throws InterruptedException {
        int ticks = Math.max(1, lines.number("commit_ms", 200) / (int) TICK_MS);
        try (KafkaProducer<String, String> producer = producer("transactional.id", lines.text("transactional_id"))) {
            producer.initTransactions();
            boolean alive = true;
            while (alive && !lines.stopping()) {
                Map<Long, Long> offsets = new ConcurrentHashMap<>();
                Map<Long, Boolean> numbers = new LinkedHashMap<>();
                producer.beginTransaction();
                try {
                    for (int tick = 0; tick < ticks; tick++) {
                        for (long number : due()) {
                            numbers.put(number, true);
                            producer.send(record(number), (metadata, error) -> {
                                if (error == null) {
                                    offsets.put(number, metadata.offset());
                                }
                            });
                        }
                        Thread.sleep(TICK_MS);
                    }
                    commit(producer);
                    numbers.keySet().forEach(number -> lines.acked(number, offsets.getOrDefault(number, -1L)));
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
                    lines.failed(joined(numbers.keySet()), true, error);
                    alive = false;
                } catch (KafkaException error) {
                    lines.error("error", error);
                    producer.abortTransaction();
                    lines.failed(joined(numbers.keySet()), false, error);
                }
                lines.flush();
            }
        }
        lines.say("closed", ",\"next\":" + next);
    }

    /** Commit; a timeout leaves it open whether it was, and is to be answered with the same call again. */
    private void commit(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                lines.error("error", "commit: " + error);
            }
        }
    }

    private static String joined(Collection<Long> numbers) {
        StringJoiner joined = new StringJoiner(",");
        numbers.forEach(number -> joined.add(Long.toString(number)));
        return joined.toString();
    }

    private void consume() {
        Properties properties = lines.properties(
            "group.id", lines.text("group"), "auto.offset.reset", "earliest", "enable.auto.commit", "false",
            "fetch.max.wait.ms", "100", "isolation.level", lines.text("isolation", "read_uncommitted"),
            "key.deserializer", STRINGS + "Deserializer", "value.deserializer", STRINGS + "Deserializer");
        if (lines.text("protocol", "classic").equals("consumer")) {
            properties.put("group.protocol", "consumer");
        } else {
            String assignor = lines.text("assignor", "range").equals("range") ? "RangeAssignor"
                : lines.text("assignor").equals("sticky") ? "StickyAssignor" : "CooperativeStickyAssignor";
            properties.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
            properties.put("session.timeout.ms", "10000");
        }
        if (!lines.text("instance", "").isEmpty()) {
            properties.put("group.instance.id", lines.text("instance"));
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties)) {
            lines.say("ready", ",\"version\":" + Lines.quoted(AppInfoParser.getVersion()));
            consumer.subscribe(List.of(topic), new Listener());
            while (!lines.stopping()) {
                try {
                    ConsumerRecords<String, String> polled = consumer.poll(Duration.ofMillis(100));
                    say(polled);
                    if (!polled.isEmpty()) {
                        consumer.commitSync(nextOffsets(polled));
                    }
                } catch (KafkaException error) {
                    lines.error("error", error);
                }
            }
        }
        lines.say("closed", "");
    }

    private static Map<TopicPartition, OffsetAndMetadata> nextOffsets(ConsumerRecords<String, String> polled) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : polled.partitions()) {
            List<ConsumerRecord<String, String>> records = polled.records(partition);
            offsets.put(partition, new OffsetAndMetadata(records.get(records.size() - 1).offset() + 1));
        }
        return offsets;
    }

    private void say(ConsumerRecords<String, String> polled) {
        for (TopicPartition partition : polled.partitions()) {
            StringJoiner records = new StringJoiner(",", "[", "]");
            for (ConsumerRecord<String, String> record : polled.records(partition)) {
                records.add("[" + record.offset() + "," + Lines.identity(record.value()) + "]");
            }
            lines.say("records", ",\"topic\":" + Lines.quoted(partition.topic()) + ",\"p\":" + partition.partition()
                + ",\"r\":" + records);
        }
    }

    private final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> some) {
            say("assigned", some);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> some) {
            say("revoked", some);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> some) {
            say("lost", some);
        }

        private void say(String event, Collection<TopicPartition> some) {
            StringJoiner joined = new StringJoiner(",", "[", "]");
            some.forEach(one -> joined.add("[" + Lines.quoted(one.topic()) + "," + one.partition() + "]"));
            lines.say(event, ",\"p\":" + joined);
        }
    }
}
