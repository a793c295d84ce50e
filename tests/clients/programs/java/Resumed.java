import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * The two halves of Flink's exactly-once sink: one writes and flushes before a checkpoint, which then holds its producer
 * id and epoch; the other commits by them. It sets the same fields as FlinkKafkaInternalProducer.resumeTransaction.
 */
public final class Resumed {
    private static final String STRING = "org.apache.kafka.common.serialization.StringSerializer";

    private Resumed() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines lines = new Lines(arguments);
        lines.stopOnSignal(Thread.currentThread());
        Properties properties = lines.properties("transactional.id", lines.text("transactional_id"),
            "key.serializer", STRING, "value.serializer", STRING, "max.block.ms", "20000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            lines.say("ready", ",\"version\":" + Lines.quoted(AppInfoParser.getVersion()));
            Object manager = get(producer, KafkaProducer.class, "transactionManager");
            if (lines.text("role").equals("begin")) {
                producer.initTransactions();
                producer.beginTransaction();
                send(lines, producer);
                Object known = get(manager, manager.getClass(), "producerIdAndEpoch");
                lines.error("notice", get(known, known.getClass(), "producerId") + " " + get(known, known.getClass(), "epoch"));
                while (lines.number("commit", 0) == 0 && !lines.stopping()) {
                    Thread.sleep(50);
                }
            } else {
                resume(manager, Long.parseLong(lines.text("producer_id")), Short.parseShort(lines.text("epoch")));
                send(lines, producer);
            }
            producer.commitTransaction();
            lines.say("closed", ",\"next\":" + lines.number("records", 0));
        } catch (Exception error) {
            lines.error("error", error);
        }
    }

    private static void send(Lines lines, KafkaProducer<String, String> producer) throws Exception {
        for (int number = 0; number < lines.number("records", 0); number++) {
            String value = "live|" + lines.text("name") + "|" + number + "|";
            producer.send(new ProducerRecord<>(lines.text("topic"), number % 2, null, value)).get();
        }
    }

    private static void resume(Object manager, long producerId, short epoch) throws Exception {
        synchronized (manager) {
            Object partitions = get(manager, manager.getClass(), "txnPartitionMap");
            Method reset = partitions.getClass().getDeclaredMethod("reset");
            reset.setAccessible(true);
            transition(manager, "INITIALIZING");
            reset.invoke(partitions);
            Constructor<?> made = field(manager.getClass(), "producerIdAndEpoch").getType()
                .getDeclaredConstructor(Long.TYPE, Short.TYPE);
            made.setAccessible(true);
            field(manager.getClass(), "producerIdAndEpoch").set(manager, made.newInstance(producerId, epoch));
            transition(manager, "READY");
            transition(manager, "IN_TRANSACTION");
            field(manager.getClass(), "transactionStarted").set(manager, true);
        }
    }

    private static void transition(Object manager, String name) throws Exception {
        for (Method method : manager.getClass().getDeclaredMethods()) {
            if (method.getName().equals("transitionTo") && method.getParameterCount() == 1) {
                method.setAccessible(true);
                for (Object state : method.getParameterTypes()[0].getEnumConstants()) {
                    if (((Enum<?>) state).name().equals(name)) {
                        method.invoke(manager, state);
                        return;
                    }
                }
            }
        }
        throw new NoSuchMethodException("transitionTo " + name);
    }

    private static Object get(Object from, Class<?> type, String name) throws Exception {
        return field(type, name).get(from);
    }

    private static Field field(Class<?> type, String name) throws Exception {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }
}
