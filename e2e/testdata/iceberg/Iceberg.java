import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.requests.CreateTableRequest;
import org.apache.iceberg.rest.requests.UpdateTableRequest;
import org.apache.iceberg.types.Types;

/**
 * A small Iceberg REST catalog, and a writer that appends files to its table through a proxy. Both are the library's own code;
 * files are in this process's memory.
 *
 * <p>It prints the catalog's port. Then each line of its input is a command: "append URL FAULT" appends one file through URL,
 * and prints "committed" or the exception; "check" prints how many snapshots the table has, and how many files were added
 * twice or are missing. Faults of the catalog: none, before (the connection ends before the commit), after (it ends after
 * it), busy (one 503 before the commit).
 */
public class Iceberg {
  static final TableIdentifier NAME = TableIdentifier.of("a", "t");
  static final ObjectMapper MAPPER = new ObjectMapper();
  static final InMemoryCatalog CATALOG = new InMemoryCatalog();
  static volatile String fault = "none";

  public static void main(String[] args) throws Exception {
    RESTSerializers.registerAll(MAPPER);
    MAPPER.setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY);
    MAPPER.setPropertyNamingStrategy(new PropertyNamingStrategies.KebabCaseStrategy());
    MAPPER.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    CATALOG.initialize("catalog", Map.of("warehouse", "mem://warehouse"));
    CATALOG.createNamespace(Namespace.of("a"));
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext("/", Iceberg::serve);
    server.setExecutor(Executors.newCachedThreadPool());
    server.start();
    System.out.println(server.getAddress().getPort());
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    int files = 0;
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      System.out.println(words[0].equals("check") ? check() : append(words[1], words[2], ++files));
    }
    System.exit(0);
  }

  static void serve(HttpExchange x) throws IOException {
    try (x) {
      String call = x.getRequestMethod() + " " + x.getRequestURI().getPath();
      byte[] body = x.getRequestBody().readAllBytes();
      boolean commit = call.equals("POST /v1/namespaces/a/tables/t");
      String now = fault;
      if (commit) {
        fault = "none";
        if (now.equals("before")) {
          return; // closes the connection
        }
        if (now.equals("busy")) {
          x.getResponseHeaders().set("Retry-After", "1");
          answer(x, 503, error(503, "ServiceUnavailableException", "busy"));
          return;
        }
      }
      byte[] result;
      try {
        result = MAPPER.writeValueAsBytes(switch (call) {
          case "GET /v1/config" -> Map.of("defaults", Map.of(), "overrides", Map.of());
          case "GET /v1/namespaces/a/tables/t" -> CatalogHandlers.loadTable(CATALOG, NAME);
          case "POST /v1/namespaces/a/tables" ->
              CatalogHandlers.createTable(CATALOG, NAME.namespace(), MAPPER.readValue(body, CreateTableRequest.class));
          case "POST /v1/namespaces/a/tables/t" ->
              CatalogHandlers.updateTable(CATALOG, NAME, MAPPER.readValue(body, UpdateTableRequest.class));
          default -> throw new IllegalArgumentException(call);
        });
      } catch (CommitFailedException e) {
        answer(x, 409, error(409, "CommitFailedException", e.getMessage()));
        return;
      } catch (NoSuchTableException e) {
        answer(x, 404, error(404, "NoSuchTableException", e.getMessage()));
        return;
      }
      if (!commit || !now.equals("after")) {
        answer(x, 200, result);
      }
    }
  }

  static byte[] error(int code, String type, String message) throws IOException {
    return MAPPER.writeValueAsBytes(Map.of("error", Map.of("code", code, "type", type, "message", message)));
  }

  static void answer(HttpExchange x, int status, byte[] body) throws IOException {
    x.getResponseHeaders().set("Content-Type", "application/json");
    x.sendResponseHeaders(status, body.length);
    x.getResponseBody().write(body);
  }

  static String append(String url, String what, int n) throws Exception {
    try (RESTCatalog catalog = new RESTCatalog()) {
      catalog.initialize("rest", Map.of("uri", url, "token", "writer", "io-impl", InMemoryFileIO.class.getName(),
          "rest-metrics-reporting-enabled", "false"));
      if (!catalog.tableExists(NAME)) {
        catalog.createTable(NAME, new Schema(Types.NestedField.required(1, "id", Types.LongType.get())));
      }
      Table table = catalog.loadTable(NAME);
      fault = what;
      table.newAppend().appendFile(DataFiles.builder(PartitionSpec.unpartitioned())
          .withPath("mem://warehouse/" + n + ".parquet").withFileSizeInBytes(1).withRecordCount(1).build()).commit();
      return "committed";
    } catch (Exception e) {
      return e.getClass().getSimpleName() + ": " + String.valueOf(e.getMessage()).replace('\n', ' ');
    }
  }

  /** A file that two snapshots add was committed twice. A manifest that is gone belonged to a commit that was taken for failed. */
  static String check() {
    Table table = CATALOG.loadTable(NAME);
    Map<String, Integer> added = new java.util.TreeMap<>();
    int missing = 0;
    int snapshots = 0;
    for (Snapshot s : table.snapshots()) {
      snapshots++;
      try {
        for (var manifest : s.allManifests(table.io())) {
          missing += exists(table, manifest.path()) ? 0 : 1;
        }
        for (var file : s.addedDataFiles(table.io())) {
          added.merge(file.location(), 1, Integer::sum);
        }
      } catch (RuntimeException e) {
        missing++; // the list of manifests, or one of them
      }
    }
    long twice = added.values().stream().filter(n -> n > 1).count();
    return "snapshots " + snapshots + " twice " + twice + " missing " + missing;
  }

  static boolean exists(Table table, String path) {
    return table.io().newInputFile(path).exists();
  }
}
