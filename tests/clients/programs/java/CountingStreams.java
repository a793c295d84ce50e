import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/** Kafka Streams with state: counts the numbers of `topic` by their last digit, one record to `output` for each of them. */
public final class CountingStreams {
    private CountingStreams() {
    }

    public static void main(String[] arguments) throws InterruptedException {
        Lines lines = new Lines(arguments);
        lines.stopOnSignal(Thread.currentThread());
        Properties properties = lines.properties(
            "application.id", lines.text("group"), "group.protocol", "streams", "processing.guarantee", lines.text("guarantee"),
            "state.dir", lines.text("state"), "auto.offset.reset", "earliest", "commit.interval.ms", "200",
            "fetch.max.wait.ms", "100", "num.stream.threads", "1", "statestore.cache.max.bytes", "0");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(lines.text("topic"), Consumed.with(Serdes.ByteArray(), Serdes.String()))
            .selectKey((key, value) -> value.substring(value.length() - 1))
            .groupByKey(Grouped.<String, String>as("digits").withKeySerde(Serdes.String()).withValueSerde(Serdes.String()))
            .count(Materialized.<String, Long, org.apache.kafka.streams.state.KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream().mapValues(count -> Long.toString(count))
            .to(lines.text("output"), Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            lines.error("error", error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
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
}
