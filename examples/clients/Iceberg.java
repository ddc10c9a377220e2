import java.util.Map;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.rest.RESTCatalog;

class Iceberg {
    public static void main(String[] args) {
        RESTCatalog catalog = new RESTCatalog();
        catalog.initialize("c", Map.of("uri", args[0], "token", "t", "io-impl", "org.apache.iceberg.inmemory.InMemoryFileIO"));
        catalog.createNamespace(Namespace.of("n"));
        System.exit(0);
    }
}
