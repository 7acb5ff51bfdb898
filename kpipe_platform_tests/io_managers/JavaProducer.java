import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Map;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes a record for each key that is a line of hexadecimal digits, with the defaults of Kafka's own producer. */
public class JavaProducer {
    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(Map.of("bootstrap.servers", args[0]), bytes, bytes)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                byte[] key = HexFormat.of().parseHex(line);
                producer.send(new ProducerRecord<>(args[1], key, line.getBytes()));
            }
        }
    }
}
