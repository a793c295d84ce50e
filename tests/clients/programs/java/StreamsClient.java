import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/** Kafka Streams: every record of `topic` goes to `output`, unchanged and into the same partition. */
public final class StreamsClient {
    private StreamsClient() {
    }

    public static void main(String[] arguments) throws InterruptedException {
        Lines lines = new Lines(arguments);
        lines.stopOnSignal(Thread.currentThread());
        Properties properties = lines.properties(
            "application.id", lines.text("group"), "processing.guarantee", lines.text("guarantee"),
            "state.dir", lines.text("state"), "auto.offset.reset", "earliest", "commit.interval.ms", "200",
            "fetch.max.wait.ms", "100", "num.stream.threads", "1", "consumer.session.timeout.ms", "10000");
        Topology topology = new StreamsBuilder().build();
        topology.addSource("in", Serdes.String().deserializer(), Serdes.String().deserializer(), lines.text("topic"));
        topology.addProcessor("pass", () -> new Pass(lines), "in");
        topology.addSink("out", lines.text("output"), Serdes.String().serializer(), Serdes.String().serializer(),
            (topic, key, value, partitions) -> java.util.Optional.of(java.util.Set.of(Pass.partition(value, partitions))),
            "pass");
        KafkaStreams streams = new KafkaStreams(topology, properties);
        streams.setUncaughtExceptionHandler(error -> {
            lines.error("error", error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> lines.say("state", ",\"state\":" + Lines.quoted(now.name())));
        lines.say("ready", ",\"version\":" + Lines.quoted(AppInfoParser.getVersion()));
        streams.start();
        while (!lines.stopping()) {
            Thread.sleep(50);
        }
        streams.close();
        lines.say("closed", "");
    }

    private static final class Pass implements Processor<String, String, String, String> {
        private final Lines lines;
        private ProcessorContext<String, String> context;

        Pass(Lines lines) {
            this.lines = lines;
        }

        /** The partition that a record's number stands for. */
        static int partition(String value, int partitions) {
            return (int) (Long.parseLong(value.split("\\|", 4)[2]) % partitions);
        }

        @Override
        public void init(ProcessorContext<String, String> given) {
            context = given;
            lines.say("assigned", ",\"p\":[[" + Lines.quoted(lines.text("topic")) + "," + given.taskId().partition() + "]]");
        }

        @Override
        public void process(Record<String, String> record) {
            RecordMetadata at = context.recordMetadata().orElseThrow();
            lines.say("records", ",\"topic\":" + Lines.quoted(at.topic()) + ",\"p\":" + at.partition() + ",\"r\":[["
                + at.offset() + "," + Lines.identity(record.value()) + "]]");
            context.forward(record);
        }

        @Override
        public void close() {
            lines.say("revoked", ",\"p\":[[" + Lines.quoted(lines.text("topic")) + "," + context.taskId().partition() + "]]");
        }
    }
}
