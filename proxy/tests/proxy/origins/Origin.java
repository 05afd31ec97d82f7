// An origin in Java: answers with the page that it has for a target, in each way of reading it.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringTokenizer;
import java.util.concurrent.Executors;
import java.util.function.Function;

public class Origin {
    static final Map<String, Function<URI, String>> READINGS = new LinkedHashMap<>();

    static {
        READINGS.put("URI.getRawPath", URI::getRawPath);
        READINGS.put("URI.getPath", URI::getPath);
        READINGS.put("URI.normalize", target -> target.normalize().getPath());
        // As Tomcat does: parameters go, then bytes are decoded, then dots are followed.
        READINGS.put("Tomcat", target -> {
            String sent = target.toString().split("\\?")[0].replaceAll(";[^/]*", "");
            String path = URI.create(sent.replaceAll("/+", "/")).getPath();
            String[] words = path.split("/", -1);
            var kept = new java.util.ArrayList<String>();
            for (String word : words) {
                if (word.equals("..") && kept.size() > 1) {
                    kept.remove(kept.size() - 1);
                } else if (!word.equals(".") && !word.equals("..")) {
                    kept.add(word);
                }
            }
            return String.join("/", kept);
        });
        READINGS.put("~URLDecoder", target ->
            URLDecoder.decode(target.getRawPath(), StandardCharsets.UTF_8));
        // As Spring does before 4.3.
        READINGS.put("AntPathMatcher", target -> {
            var path = new StringBuilder();
            var words = new StringTokenizer(target.getPath(), "/");
            while (words.hasMoreTokens()) {
                String word = words.nextToken().trim();
                if (!word.isEmpty()) path.append('/').append(word);
            }
            return path.toString();
        });
        READINGS.put("~equalsIgnoreCase", target -> {
            String path = target.getPath();
            return path.equalsIgnoreCase("/user") ? "/user" : path;
        });
    }

    static String page(String path) {
        if (path == null || path.isEmpty() || path.equals("/")) return "home";
        if (path.equals("/account") || path.startsWith("/account/")) return "account";
        if (path.equals("/user")) return "user";
        if (path.endsWith(".css")) return "styles";
        return (path + "/").startsWith("/static/") ? "static" : "none";
    }

    static void answer(HttpExchange exchange) throws IOException {
        var pages = new StringBuilder();
        READINGS.forEach((name, read) -> {
            String page;
            try {
                page = page(read.apply(exchange.getRequestURI()));
            } catch (IllegalArgumentException error) {
                page = "error";
            }
            pages.append(name).append(": ").append(page).append('\n');
        });
        byte[] body = pages.toString().getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(200, body.length);
        try (var out = exchange.getResponseBody()) {
            out.write(body);
        }
    }

    public static void main(String[] arguments) throws IOException {
        var address = new InetSocketAddress(InetAddress.getLoopbackAddress(), 0);
        HttpServer server = HttpServer.create(address, 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", Origin::answer);
        server.start();
        System.out.println("http://127.0.0.1:" + server.getAddress().getPort());
    }
}
