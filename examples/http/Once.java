import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Base64;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Submits a job once, works it, and runs work of one's own once, with nothing but java.net.http.
 *
 * <pre>java Once.java URL KEY</pre>
 *
 * URL is the manager's. The token of ONCEGATE_TOKEN is sent if it is set. The JDK has no JSON parser, so this example
 * finds the few members that it needs with a pattern; take a library in a program of yours.
 */
public final class Once {
    private static final int ATTEMPTS = 10;
    private static final Set<Integer> TRY_AGAIN = Set.of(429, 502, 503, 504);

    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(10)).build();
    private final String base;
    private final String key;

    private Once(String base, String key) {
        this.base = base;
        this.key = key;
    }

    /**
     * Makes a call until it has an answer.
     *
     * <p>A lost answer says nothing about the work, so the same request goes again: the same key, the same bytes. 409
     * {@code request-pending} means that the first attempt is still running. 429 and 503 name a time to wait.
     */
    private HttpResponse<String> call(String method, String path, String body, String idempotencyKey) throws InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(base + path)).timeout(Duration.ofSeconds(60))
                .header("Content-Type", "application/json")
                .method(method, body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body));
        if (idempotencyKey != null) {
            request.header("Idempotency-Key", idempotencyKey);
        }
        String token = System.getenv("ONCEGATE_TOKEN");
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            double wait = 0.1 * Math.pow(2, attempt);
            try {
                HttpResponse<String> answer = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
                if (!TRY_AGAIN.contains(answer.statusCode()) && !"request-pending".equals(member(answer.body(), "code"))) {
                    return answer;
                }
                wait = answer.headers().firstValue("Retry-After").map(Double::parseDouble).orElse(wait);
            } catch (IOException e) {
                // Refused, reset, timed out, or cut short.
            }
            Thread.sleep((long) (Math.min(wait, 5) * 1000));
        }
        throw new IllegalStateException(method + " " + path + ": no answer after " + ATTEMPTS + " attempts");
    }

    /** Returns a member that is a string or a number, the first of that name; null if there is none. */
    private static String member(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\\s*(?:\"([^\"]*)\"|([0-9]+))").matcher(json);
        return !found.find() ? null : found.group(1) != null ? found.group(1) : found.group(2);
    }

    /** Submits a job. However often it is sent, there is one job. */
    private String submit() throws InterruptedException {
        HttpResponse<String> answer = call("POST", "/v1/jobs", "{\"function\": \"mail.send\", \"payload\": {\"to\": \"ann\"}}", key);
        if (answer.statusCode() != 202) {
            throw new IllegalStateException("submit: " + answer.statusCode() + " " + answer.body());
        }
        System.out.println("submitted, replayed: " + answer.headers().firstValue("Idempotent-Replayed").orElse("false"));
        return member(answer.body(), "id");
    }

    /** Claims a job, does it, and says so. The lease's token proves that no other worker has it now. */
    private void work(String id) throws InterruptedException {
        String claimed = call("POST", "/v1/jobs/claim", "{\"functions\": [\"mail.send\"], \"worker\": \"example\", \"wait_ms\": 10000}", null).body();
        String finish = "{\"lease_token\": \"" + member(claimed, "token") + "\", \"status\": \"complete\", \"result\": {\"sent\": \"ann\"}}";
        call("POST", "/v1/jobs/" + id + "/finish", finish, null);
        String job = call("GET", "/v1/jobs/" + id, null, null).body();
        System.out.println("job: " + member(job, "state") + " attempt " + member(job, "attempt"));
    }

    /** Runs work of one's own once: reserves the key, does the work, and records what came of it. */
    private void once() throws InterruptedException {
        String names = "\"key\": \"" + key + "\", \"scope\": \"shop/payments\", \"token\": \"" + UUID.randomUUID() + "\""; // one token for this attempt
        HttpResponse<String> entry = call("POST", "/v1/ledger/reserve", "{" + names + ", \"fingerprint\": \"amount=100\", \"wait_ms\": 10000}", null);
        String state = member(entry.body(), "state");
        if ("reserved".equals(state)) {
            String answer = "{\"paid\":100}"; // the work
            HttpResponse<String> committed = call("POST", "/v1/ledger/commit", "{" + names + ", \"result\": {\"status\": 201, \"headers\": [[\"content-type\", \"application/json\"]], \"body\": \""
                    + Base64.getEncoder().encodeToString(answer.getBytes()) + "\"}}", null);
            if (committed.statusCode() != 200) { // another attempt has taken the key, for example
                throw new IllegalStateException("it ran, and its outcome is not recorded: " + committed.statusCode() + " " + committed.body());
            }
            System.out.println("executed: " + answer);
        } else if ("committed".equals(state)) {
            System.out.println("replayed: " + new String(Base64.getDecoder().decode(member(entry.body(), "body"))));
        } else { // another attempt runs, or its outcome is unknown: do not run it
            System.out.println("not run: " + entry.statusCode() + " " + entry.body());
        }
    }

    public static void main(String[] args) throws InterruptedException {
        Once program = new Once(args[0], args[1]);
        String id = program.submit();
        if (!id.equals(program.submit())) {
            throw new IllegalStateException("two jobs");
        }
        program.work(id);
        program.once();
        program.once();
    }
}
