import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.util.JsonFormat;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.ByteUtils;

/**
 * Writes and reads partition 0 of topics: an answer on standard output for each command on standard input.
 *
 * <p>Avro and JSON Schema: with Apicurio's serializers in their mode for Confluent's wire format. Protobuf: Apicurio's
 * serializer registers the schema, but does not write a message path; that is written as Confluent's serializer does,
 * with Kafka's varints.
 *
 * <p>A command is a JSON object with the topic, its format, the schema (Avro), or a file with a FileDescriptorSet and
 * the name of the message type (Protobuf), and the records to write, as JSON; without records, it reads.
 *
 * <p>Arguments: the bootstrap servers, and the address of the registry's own API.
 */
public class JavaSerializers {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        var bytes = new ByteArraySerializer();
        var commands = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        try (var producer = new KafkaProducer<byte[], byte[]>(Map.of("bootstrap.servers", args[0]), bytes, bytes)) {
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                var command = JSON.readTree(line);
                boolean isJson = command.get("format").asText().equals("json");
                Map<String, Object> settings = Map.of(
                    "apicurio.registry.url", args[1],
                    "apicurio.registry.as-confluent", true,
                    "apicurio.registry.headers.enabled", false,
                    // The ids of the API that is compatible with Confluent's.
                    "apicurio.registry.use-id", "contentId",
                    "apicurio.registry.auto-register", !isJson,
                    "apicurio.registry.find-latest", isJson,
                    "apicurio.registry.serde.validation-enabled", isJson);
                var answer = JSON.createArrayNode();
                if (command.has("records")) {
                    for (var record : command.get("records")) {
                        byte[] value = encoded(command, settings, record.toString());
                        producer.send(new ProducerRecord<>(command.get("topic").asText(), 0, null, value)).get();
                    }
                } else {
                    for (String record : read(args[0], command, settings)) {
                        answer.add(record == null ? null : JSON.readTree(record));
                    }
                }
                System.out.println(answer);
            }
        }
    }

    private static byte[] encoded(JsonNode command, Map<String, Object> settings, String line) throws Exception {
        var topic = command.get("topic").asText();
        switch (command.get("format").asText()) {
            case "avro" -> {
                var schema = new Schema.Parser().parse(command.get("schema").toString());
                var decoder = DecoderFactory.get().jsonDecoder(schema, line);
                var value = new GenericDatumReader<GenericData.Record>(schema).read(null, decoder);
                return serialize(new AvroKafkaSerializer<GenericData.Record>(), settings, topic, value);
            }
            case "json" -> {
                return serialize(new JsonSchemaKafkaSerializer<JsonNode>(), settings, topic, JSON.readTree(line));
            }
            default -> {
                var kind = messageType(command.get("file").asText(), command.get("message").asText());
                var message = DynamicMessage.newBuilder(kind);
                JsonFormat.parser().merge(line, message);
                var registered = serialize(
                    new ProtobufKafkaSerializer<DynamicMessage>(), settings, topic, message.build());
                var frame = ByteBuffer.allocate(64).put(registered, 0, 5);
                var path = pathOf(kind);
                if (path.equals(List.of(0))) {
                    ByteUtils.writeVarint(0, frame);
                } else {
                    ByteUtils.writeVarint(path.size(), frame);
                    path.forEach(index -> ByteUtils.writeVarint(index, frame));
                }
                byte[] data = message.build().toByteArray();
                return ByteBuffer.allocate(frame.position() + data.length)
                    .put(frame.array(), 0, frame.position()).put(data).array();
            }
        }
    }

    private static <T> byte[] serialize(Serializer<T> serializer, Map<String, Object> settings, String topic, T value) {
        try (serializer) {
            serializer.configure(settings, false);
            return serializer.serialize(topic, value);
        }
    }

    private static List<String> read(String servers, JsonNode command, Map<String, Object> settings) throws Exception {
        var partition = new TopicPartition(command.get("topic").asText(), 0);
        var found = new ArrayList<String>();
        var consumer = new KafkaConsumer<byte[], byte[]>(
            Map.of("bootstrap.servers", servers, "isolation.level", "read_committed"),
            new ByteArrayDeserializer(),
            new ByteArrayDeserializer());
        try (consumer) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    found.add(record.value() == null ? null : decoded(command, settings, record.value()));
                }
            }
        }
        return found;
    }

    private static String decoded(JsonNode command, Map<String, Object> settings, byte[] data) throws Exception {
        var topic = command.get("topic").asText();
        switch (command.get("format").asText()) {
            case "avro" -> {
                return deserialize(new AvroKafkaDeserializer<GenericData.Record>(), settings, topic, data).toString();
            }
            case "json" -> {
                return deserialize(new JsonSchemaKafkaDeserializer<JsonNode>(), settings, topic, data).toString();
            }
            default -> {
                var buffer = ByteBuffer.wrap(data, 5, data.length - 5);
                var path = new ArrayList<Integer>();
                for (int left = ByteUtils.readVarint(buffer); left > 0; left--) {
                    path.add(ByteUtils.readVarint(buffer));
                }
                var kind = messageType(command.get("file").asText(), command.get("message").asText());
                var expected = pathOf(kind);
                if (!expected.equals(path.isEmpty() ? List.of(0) : path)) {
                    throw new IllegalStateException("the path is " + path + ", not " + expected);
                }
                byte[] payload = new byte[buffer.remaining()];
                buffer.get(payload);
                var message = DynamicMessage.parseFrom(kind, payload);
                return JsonFormat.printer().omittingInsignificantWhitespace().print(message);
            }
        }
    }

    private static <T> T deserialize(
        Deserializer<T> deserializer, Map<String, Object> settings, String topic, byte[] data) {
        try (deserializer) {
            deserializer.configure(settings, false);
            return deserializer.deserialize(topic, data);
        }
    }

    /** The index of the type among its siblings, on each level. */
    private static List<Integer> pathOf(Descriptor kind) {
        var path = new ArrayList<Integer>();
        for (var each = kind; each != null; each = each.getContainingType()) {
            path.add(0, each.getIndex());
        }
        return path;
    }

    private static Descriptor messageType(String file, String name) throws Exception {
        var files = new HashMap<String, FileDescriptor>();
        for (FileDescriptorProto each : FileDescriptorSet.parseFrom(Files.readAllBytes(Path.of(file))).getFileList()) {
            var imports = each.getDependencyList().stream().map(files::get).toArray(FileDescriptor[]::new);
            files.put(each.getName(), FileDescriptor.buildFrom(each, imports));
        }
        for (FileDescriptor each : files.values()) {
            for (Descriptor message : each.getMessageTypes()) {
                for (Descriptor found = message; found != null; ) {
                    if (found.getFullName().equals(name)) {
                        return found;
                    }
                    Descriptor within = null;
                    for (Descriptor nested : found.getNestedTypes()) {
                        if (name.equals(nested.getFullName()) || name.startsWith(nested.getFullName() + ".")) {
                            within = nested;
                        }
                    }
                    found = within;
                }
            }
        }
        throw new IllegalArgumentException(name);
    }
}
