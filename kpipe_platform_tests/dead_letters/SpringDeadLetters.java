import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;
import org.apache.kafka.common.serialization.Serializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.support.serializer.DelegatingByTypeSerializer;
import org.springframework.kafka.support.serializer.ErrorHandlingDeserializer;
import org.springframework.util.backoff.FixedBackOff;

/** Fails on every record of a topic, as a Spring application does, until so many are dead letters. */
public class SpringDeadLetters {
    public static void main(String[] args) throws Exception {
        String servers = args[0];
        String source = args[1];
        String deadLetters = args[2];
        CountDownLatch left = new CountDownLatch(Integer.parseInt(args[3]));

        // What could not be deserialized is sent as the bytes that it was.
        Map<Class<?>, Serializer<?>> serializers = Map.of(
            byte[].class, new ByteArraySerializer(),
            Integer.class, new IntegerSerializer(),
            Long.class, new LongSerializer());
        var producers = new DefaultKafkaProducerFactory<Object, Object>(
            Map.of("bootstrap.servers", servers),
            new DelegatingByTypeSerializer(serializers),
            new DelegatingByTypeSerializer(serializers));
        var recoverer = new DeadLetterPublishingRecoverer(
            new KafkaTemplate<>(producers), (record, error) -> new TopicPartition(deadLetters, record.partition()));

        var consumers = new DefaultKafkaConsumerFactory<Long, Integer>(
            Map.of("bootstrap.servers", servers, "group.id", "billing", "auto.offset.reset", "earliest"),
            new ErrorHandlingDeserializer<>(new LongDeserializer()),
            new ErrorHandlingDeserializer<>(new IntegerDeserializer()));
        var properties = new ContainerProperties(source);
        properties.setMessageListener((MessageListener<Long, Integer>) record -> {
            throw new IllegalStateException("no account for " + record.value());
        });
        var container = new KafkaMessageListenerContainer<>(consumers, properties);
        container.setCommonErrorHandler(new DefaultErrorHandler((record, error) -> {
            recoverer.accept(record, error);
            left.countDown();
        }, new FixedBackOff(0, 0)));
        container.start();
        boolean done = left.await(120, TimeUnit.SECONDS);
        container.stop();
        producers.destroy();
        System.exit(done ? 0 : 1);
    }
}
