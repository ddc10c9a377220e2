// Repeats requests over HTTP/2 with the JDK's client, and prints what is lost. See e2e/http2_test.go. The client speaks HTTP/2 from
// the first request only over TLS; the last argument is the file of the CA.
import java.io.ByteArrayInputStream;
import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Replays {
    static int[] sizes;
    static HttpClient client;
    static String[] args;

    static int send(int size, String type, String suffix) throws Exception {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) ' ');
        body[0] = '{';
        body[1] = '}';
        var publisher = args[3].equals("declared") ? HttpRequest.BodyPublishers.ofByteArray(body)
                : HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
        var request = HttpRequest.newBuilder(URI.create(args[0])).header("Idempotency-Key", args[1] + "-" + size + suffix)
                .header("Content-Type", type).POST(publisher).build();
        var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.version() != HttpClient.Version.HTTP_2) {
            throw new IllegalStateException("" + answer.version());
        }
        return answer.statusCode();
    }

    static void repeat(int i) {
        int want = new int[] {201, 422, 400}[i % 3];
        int size = sizes[i / 3 % sizes.length];
        try {
            int status = send(size, want == 422 ? "text/html" : "application/json", want == 400 ? "x".repeat(300) : "");
            if (status != want) {
                System.out.println(size + " bytes: " + status + " instead of " + want);
            }
        } catch (Exception e) {
            System.out.println(size + " bytes, " + want + ": " + e);
        }
    }

    public static void main(String[] arguments) throws Exception {
        args = arguments;
        sizes = Stream.of(args[4].split(",")).mapToInt(Integer::parseInt).toArray();
        var store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (var file = new FileInputStream(args[5])) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        var tls = SSLContext.getInstance("TLS");
        tls.init(null, trust.getTrustManagers(), null);
        client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).sslContext(tls).build();

        for (int size : sizes) {
            int status = send(size, "application/json", "");
            if (status != 201) {
                throw new IllegalStateException("status " + status);
            }
        }
        var workers = Executors.newFixedThreadPool(8);
        for (int n = 0; n < Integer.parseInt(args[2]); n++) {
            int i = n;
            workers.execute(() -> repeat(i));
        }
        workers.shutdown();
        if (!workers.awaitTermination(10, TimeUnit.MINUTES)) {
            throw new IllegalStateException("it takes too long");
        }
        System.exit(0); // the client's threads go on
    }
}
