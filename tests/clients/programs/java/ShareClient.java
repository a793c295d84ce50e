import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * A member of a share group (KIP-932). It accepts every record but those of one offset (`leave`), which it releases; once it
 * has released one it acknowledges no more, so that the records behind stay acknowledged out of order.
 */
public final class ShareClient {
    private ShareClient() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines lines = new Lines(arguments);
        lines.stopOnSignal(Thread.currentThread());
        Properties properties = lines.properties(
            "group.id", lines.text("group"), "share.acknowledgement.mode", "explicit", "fetch.max.wait.ms", "100",
            "key.deserializer", StringDeserializer.class.getName(), "value.deserializer", StringDeserializer.class.getName());
        if (!lines.text("reset", "").isEmpty()) {
            reset(lines);
        }
        long left = lines.number("leave", -1);
        boolean released = false;
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(lines.text("topic")));
            lines.say("ready", ",\"version\":" + Lines.quoted(AppInfoParser.getVersion()));
            while (!lines.stopping()) {
                if (released) {
                    Thread.sleep(50);
                    continue;
                }
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    boolean leave = record.offset() == left;
                    consumer.acknowledge(record, leave ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    released |= leave;
                    lines.say("records", ",\"topic\":" + Lines.quoted(record.topic()) + ",\"p\":" + record.partition()
                        + ",\"r\":[[" + record.offset() + "," + Lines.identity(record.value()) + "]]");
                }
                consumer.commitSync().forEach((partition, error) -> error.ifPresent(one -> lines.error("error", one)));
            }
        }
        lines.say("closed", "");
    }

    private static void reset(Lines lines) throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, lines.text("group"));
        ConfigEntry entry = new ConfigEntry("share.auto.offset.reset", lines.text("reset"));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", lines.text("bootstrap")))) {
            admin.incrementalAlterConfigs(Map.of(group, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
        }
    }
}
