import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/** Arguments in, JSON lines out: the line protocol of tests/clients/programs, by hand so that it needs no library. */
final class Lines {
    final Map<String, String> arguments = new HashMap<>();
    private final Map<String, String> settings = new HashMap<>();
    private final StringBuilder acked = new StringBuilder();
    private volatile boolean stop;

    Lines(String[] given) {
        for (String argument : given) {
            int equals = argument.indexOf('=');
            String key = argument.substring(0, equals);
            (key.startsWith("set.") ? settings : arguments)
                .put(key.startsWith("set.") ? key.substring(4) : key, argument.substring(equals + 1));
        }
    }

    String text(String key) {
        String value = arguments.get(key);
        if (value == null) {
            throw new IllegalArgumentException(key + "=... is missing");
        }
        return value;
    }

    String text(String key, String otherwise) {
        return arguments.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        return Integer.parseInt(text(key, Integer.toString(otherwise)));
    }

    /** Properties for the library: ours, then those that the command line sets. */
    Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", text("bootstrap"));
        properties.put("client.id", text("name"));
        for (int index = 0; index < pairs.length; index += 2) {
            properties.put(pairs[index], pairs[index + 1]);
        }
        properties.putAll(settings);
        return properties;
    }

    /** SIGTERM sets this; the main thread then ends in good order and the JVM waits for it. */
    void stopOnSignal(Thread main) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop = true;
            try {
                main.join(60_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
    }

    boolean stopping() {
        return stop;
    }

    /** One line; `more` is either empty or begins with a comma. */
    void say(String event, String more) {
        String line = "{\"e\":\"" + event + "\",\"t\":" + System.currentTimeMillis() + more + "}";
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    void error(String event, Object error) {
        say(event, ",\"error\":" + quoted(String.valueOf(error)));
    }

    synchronized void acked(long number, long offset) {
        acked.append(acked.length() == 0 ? "[" : ",[").append(number).append(',').append(offset).append(',')
            .append(System.currentTimeMillis()).append(']');
    }

    void flush() {
        String some;
        synchronized (this) {
            some = acked.toString();
            acked.setLength(0);
        }
        if (!some.isEmpty()) {
            say("acked", ",\"r\":[" + some + "]");
        }
    }

    void failed(String numbers, boolean written, Object error) {
        say("failed", ",\"r\":[" + numbers + "],\"written\":" + written + ",\"error\":" + quoted(String.valueOf(error)));
    }

    /** A value's writer and number as the protocol's `"name",number`. */
    static String identity(String value) {
        String[] parts = value == null ? new String[0] : value.split("\\|", 4);
        return parts.length == 4 && parts[0].equals("live") ? quoted(parts[1]) + "," + parts[2] : "\"\",-1";
    }

    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                quoted.append('\\').append(one);
            } else if (one < ' ') {
                quoted.append(String.format("\\u%04x", (int) one));
            } else {
                quoted.append(one);
            }
        }
        return quoted.append('"').toString();
    }
}
