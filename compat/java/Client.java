import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;
import org.apache.zookeeper.*;
import org.apache.zookeeper.Watcher.Event.*;
import org.apache.zookeeper.admin.ZooKeeperAdmin;
import org.apache.zookeeper.data.*;

/** Tests the calls of ZooKeeper's Java client, and its session while servers are killed. Prints one line per check. */
public class Client {
    static final List<ACL> OPEN = ZooDefs.Ids.OPEN_ACL_UNSAFE;
    static final int TIMEOUT_MS = 8_000;
    static String connect;
    static int failed;

    interface Check { void run() throws Exception; }

    static final class Events implements Watcher {
        final BlockingQueue<WatchedEvent> all = new LinkedBlockingQueue<>();
        final BlockingQueue<WatchedEvent> states = new LinkedBlockingQueue<>();
        @Override public void process(WatchedEvent event) { (event.getPath() == null ? states : all).add(event); }
        String next() throws Exception {
            WatchedEvent event = all.poll(10, TimeUnit.SECONDS);
            return event == null ? "none" : event.getType() + " " + event.getPath();
        }
        void none() throws Exception {
            Thread.sleep(300);
            same(null, all.peek());
        }
        void state(KeeperState wanted) throws Exception {
            long end = System.currentTimeMillis() + 30_000;
            while (true) {
                WatchedEvent event = states.poll(Math.max(0, end - System.currentTimeMillis()), TimeUnit.MILLISECONDS);
                if (event == null) throw new AssertionError("state " + wanted + " not reached");
                if (event.getState() == wanted) return;
            }
        }
    }

    static ZooKeeper open(String where, Watcher watcher) throws Exception { return open(where, watcher, TIMEOUT_MS); }
    static ZooKeeper open(String where, Watcher watcher, int timeout) throws Exception {
        ZooKeeper client = new ZooKeeper(where, timeout, watcher);
        connected(client);
        return client;
    }
    static void connected(ZooKeeper client) throws Exception {
        for (int i = 0; i < 600 && client.getState() != ZooKeeper.States.CONNECTED; i++) Thread.sleep(50);
        same(ZooKeeper.States.CONNECTED, client.getState());
    }
    static byte[] bytes(String text) { return text.getBytes(StandardCharsets.UTF_8); }
    static void same(Object wanted, Object found) {
        if (!Objects.equals(String.valueOf(wanted), String.valueOf(found))) throw new AssertionError("wanted " + wanted + ", found " + found);
    }
    static void fails(KeeperException.Code code, Check check) throws Exception {
        try { check.run(); } catch (KeeperException error) { same(code, error.code()); return; }
        throw new AssertionError("expected " + code + ", but it succeeded");
    }
    /** Retries until connected. */
    static <T> T retry(Callable<T> call) throws Exception {
        for (long end = System.currentTimeMillis() + 40_000; ; Thread.sleep(100)) {
            try { return call.call(); } catch (KeeperException.ConnectionLossException error) {
                if (System.currentTimeMillis() > end) throw error;
            }
        }
    }
    static void check(String name, Check check) {
        String only = System.getenv("ONLY");
        if (only != null && !name.contains(only)) return;
        long start = System.nanoTime();
        try {
            check.run();
            System.out.printf("ok   %s (%d ms)%n", name, (System.nanoTime() - start) / 1_000_000);
        } catch (Throwable error) {
            failed++;
            System.out.println("FAIL " + name + ": " + error);
            if (System.getenv("TRACE") != null) error.printStackTrace(System.out);
        }
    }
    static int port(ZooKeeper client) {
        var match = java.util.regex.Pattern.compile("remoteserver:[^:]*:(\\d+)").matcher(client.toString());
        if (!match.find()) throw new AssertionError("not connected");
        return Integer.parseInt(match.group(1));
    }
    static void servers(String action, int port) throws Exception {
        Process process = new ProcessBuilder(System.getenv("SERVERS"), action, String.valueOf(port)).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes());
        if (process.waitFor() != 0) throw new AssertionError(action + " " + port + ": " + said);
    }

    /** A proxy that forwards bytes until it is cut. */
    static final class Proxy implements AutoCloseable {
        final ServerSocket listener;
        final int to;
        volatile boolean isCut;
        final List<Socket> sockets = new CopyOnWriteArrayList<>();
        Proxy(int to) throws IOException {
            this.to = to;
            listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
            thread(() -> {
                while (true) {
                    Socket in = listener.accept();
                    if (isCut) { in.close(); continue; }
                    Socket out = new Socket("127.0.0.1", to);
                    sockets.add(in); sockets.add(out);
                    pump(in, out); pump(out, in);
                }
            });
        }
        static void thread(Check check) {
            Thread thread = new Thread(() -> { try { check.run(); } catch (Exception ignored) { } });
            thread.setDaemon(true);
            thread.start();
        }
        static void pump(Socket from, Socket to) {
            thread(() -> { try { from.getInputStream().transferTo(to.getOutputStream()); } finally { from.close(); to.close(); } });
        }
        String address() { return "127.0.0.1:" + listener.getLocalPort(); }
        void cut() throws IOException { isCut = true; for (Socket socket : sockets) socket.close(); sockets.clear(); }
        void mend() { isCut = false; }
        @Override public void close() throws IOException { listener.close(); cut(); }
    }

    public static void main(String[] arguments) throws Exception {
        connect = arguments[0];
        int[] ports = Arrays.stream(connect.split(",")).mapToInt(each -> Integer.parseInt(each.split(":")[1])).toArray();
        Events events = new Events();
        ZooKeeper zk = open(connect, events);
        ZooKeeper other = open(connect, event -> { });
        String root = "/java-" + Long.toHexString(System.nanoTime());
        zk.create(root, null, OPEN, CreateMode.PERSISTENT);

        check("null, empty and 1,000,000 bytes of data", () -> {
            same(null, zk.getData(root, false, null));
            zk.setData(root, new byte[0], 0);
            same(0, zk.getData(root, false, null).length);
            byte[] large = new byte[1_000_000];
            new Random(1).nextBytes(large);
            zk.setData(root, large, 1);
            if (!Arrays.equals(large, zk.getData(root, false, null))) throw new AssertionError("other bytes");
            zk.setData(root, null, 2);
            same(null, zk.getData(root, false, null));
        });
        check("1 MB request", () -> {
            Events mine = new Events();
            ZooKeeper client = open(connect, mine);
            try {
                client.setData(root, new byte[1 << 20], -1);
                throw new AssertionError("accepted");
            } catch (KeeperException error) {
                System.out.println("     a request above 1 MB: " + error.code());
            }
            retry(() -> client.exists(root, false));
            client.close();
        });
        check("a listing of 800 kB", () -> {
            String path = root + "/wide";
            zk.create(path, null, OPEN, CreateMode.PERSISTENT);
            String long_ = "x".repeat(990);
            for (int i = 0; i < 8; i++) {
                List<Op> ops = new ArrayList<>();
                for (int j = 0; j < 100; j++) ops.add(Op.create(path + "/" + i + "-" + j + long_, null, OPEN, CreateMode.PERSISTENT));
                zk.multi(ops);
            }
            same(800, zk.getAllChildrenNumber(path));
            same(800, zk.getChildren(path, false).size());
            same(true, ZKUtil.deleteRecursive(zk, path, 100));
        });
        check("create modes and stats", () -> {
            Stat stat = new Stat();
            same(root + "/p", zk.create(root + "/p", bytes("abc"), OPEN, CreateMode.PERSISTENT, stat));
            same(3, stat.getDataLength());
            same(root + "/s0000000002", zk.create(root + "/s", null, OPEN, CreateMode.PERSISTENT_SEQUENTIAL, stat));
            same(root + "/e", zk.create(root + "/e", null, OPEN, CreateMode.EPHEMERAL, stat));
            same(zk.getSessionId(), stat.getEphemeralOwner());
            same(root + "/es0000000004", zk.create(root + "/es", null, OPEN, CreateMode.EPHEMERAL_SEQUENTIAL));
            same(root + "/c", zk.create(root + "/c", null, OPEN, CreateMode.CONTAINER, stat));
            same(0, stat.getEphemeralOwner());
            same(root + "/t", zk.create(root + "/t", null, OPEN, CreateMode.PERSISTENT_WITH_TTL, stat, 100_000));
            same(0, stat.getEphemeralOwner());
            same(root + "/ts0000000007", zk.create(root + "/ts", null, OPEN, CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, stat, 100_000));
            fails(KeeperException.Code.NODEEXISTS, () -> zk.create(root + "/p", null, OPEN, CreateMode.PERSISTENT));
            fails(KeeperException.Code.NONODE, () -> zk.create(root + "/q/r", null, OPEN, CreateMode.PERSISTENT));
            fails(KeeperException.Code.NOCHILDRENFOREPHEMERALS, () -> zk.create(root + "/e/r", null, OPEN, CreateMode.PERSISTENT));
            fails(KeeperException.Code.NOTEMPTY, () -> zk.delete(root, -1));
            fails(KeeperException.Code.BADVERSION, () -> zk.delete(root + "/p", 7));
            fails(KeeperException.Code.INVALIDACL, () -> zk.create(root + "/x", null, Arrays.asList(new ACL(31, new Id("nope", "x"))), CreateMode.PERSISTENT));
            fails(KeeperException.Code.INVALIDACL, () -> zk.create(root + "/x", null, new ArrayList<>(), CreateMode.PERSISTENT));
            Stat parent = zk.exists(root, false);
            same(7, parent.getNumChildren());
            same(List.of("c", "e", "es0000000004", "p", "s0000000002", "t", "ts0000000007"), zk.getChildren(root, false, stat).stream().sorted().toList());
            same(parent.getCversion(), stat.getCversion());
            same(List.of(root + "/e", root + "/es0000000004"), zk.getEphemerals(root).stream().sorted().toList());
            same(List.of(), other.getEphemerals());
            zk.delete(root + "/p", 0);
        });
        check("asynchronous calls answer in order", () -> {
            List<String> answers = Collections.synchronizedList(new ArrayList<>());
            CountDownLatch done = new CountDownLatch(15);
            String path = root + "/async";
            zk.create(path, bytes("0"), OPEN, CreateMode.PERSISTENT, (rc, p, context, name) -> { answers.add("create " + rc); done.countDown(); }, null);
            zk.create(path + "2", bytes("0"), OPEN, CreateMode.PERSISTENT, (rc, p, context, name, stat) -> { answers.add("create2 " + rc + stat.getVersion()); done.countDown(); }, null);
            zk.create(path + "3", bytes("0"), OPEN, CreateMode.PERSISTENT_WITH_TTL, (rc, p, context, name, stat) -> { answers.add("ttl " + rc + stat.getVersion()); done.countDown(); }, null, 60_000);
            zk.setData(path, bytes("1"), 0, (rc, p, context, stat) -> { answers.add("set " + rc + stat.getVersion()); done.countDown(); }, null);
            zk.getData(path, false, (rc, p, context, data, stat) -> { answers.add("get " + new String(data)); done.countDown(); }, null);
            zk.exists(path + "/none", false, (rc, p, context, stat) -> { answers.add("exists " + rc); done.countDown(); }, null);
            zk.getACL(path, new Stat(), (rc, p, context, acl, stat) -> { answers.add("acl " + acl.size()); done.countDown(); }, null);
            zk.setACL(path, OPEN, 0, (rc, p, context, stat) -> { answers.add("setacl " + stat.getAversion()); done.countDown(); }, null);
            zk.getChildren(path, false, (rc, p, context, children) -> { answers.add("ls " + children.size()); done.countDown(); }, null);
            zk.getChildren(path, false, (rc, p, context, children, stat) -> { answers.add("ls2 " + children.size() + stat.getVersion()); done.countDown(); }, null);
            zk.getAllChildrenNumber(path, (rc, p, context, number) -> { answers.add("number " + number); done.countDown(); }, null);
            zk.sync(path, (rc, p, context) -> { answers.add("sync " + rc + p.equals(path)); done.countDown(); }, null);
            zk.multi(List.of(Op.check(path, 1), Op.delete(path + "2", 0)), (rc, p, context, results) -> { answers.add("multi " + rc + results.size()); done.countDown(); }, null);
            zk.delete(path + "/none", 0, (rc, p, context) -> { answers.add("delete " + rc); done.countDown(); }, null);
            zk.delete(path, 1, (rc, p, context) -> { answers.add("delete " + rc); done.countDown(); }, null);
            same(true, done.await(10, TimeUnit.SECONDS));
            same("[create 0, create2 00, ttl 00, set 01, get 1, exists -101, acl 1, setacl 1, ls 0, ls2 01, number 0, sync 0true, multi 02, delete -101, delete 0]", answers);
        });
        check("1,000 requests outstanding", () -> {
            AtomicInteger sum = new AtomicInteger();
            CountDownLatch done = new CountDownLatch(2_000);
            zk.create(root + "/many", null, OPEN, CreateMode.PERSISTENT);
            for (int i = 0; i < 1_000; i++) {
                int wanted = i + 1;
                zk.setData(root + "/many", bytes("" + i), i, (rc, p, context, stat) -> { if (rc == 0 && stat.getVersion() == wanted) sum.incrementAndGet(); done.countDown(); }, null);
                zk.getData(root + "/many", false, (rc, p, context, data, stat) -> { if (stat.getVersion() == wanted) sum.incrementAndGet(); done.countDown(); }, null);
            }
            same(true, done.await(30, TimeUnit.SECONDS));
            same(2_000, sum);
        });
        check("multi", () -> {
            String path = root + "/multi";
            List<OpResult> results = zk.multi(List.of(Op.create(path, bytes("a"), OPEN, CreateMode.PERSISTENT),
                Op.create(path + "/s", null, OPEN, CreateMode.EPHEMERAL_SEQUENTIAL), Op.setData(path, bytes("b"), 0), Op.check(path, 1),
                Op.create(path + "/c", null, OPEN, CreateMode.CONTAINER), Op.create(path + "/t", null, OPEN, CreateMode.PERSISTENT_WITH_TTL, 60_000),
                Op.delete(path + "/c", 0)));
            same("[1, 1, 5, 13, 15, 15, 2]", results.stream().map(OpResult::getType).toList());
            same(path + "/s0000000000", ((OpResult.CreateResult) results.get(1)).getPath());
            try {
                zk.multi(List.of(Op.setData(path, bytes("c"), 1), Op.delete(path + "/none", -1), Op.check(path, 2)));
                throw new AssertionError("succeeded");
            } catch (KeeperException.NoNodeException error) {
                same("[0, -101, -2]", error.getResults().stream().map(each -> ((OpResult.ErrorResult) each).getErr()).toList());
            }
            same("b", new String(zk.getData(path, false, null)));
            results = zk.multi(List.of(Op.getData(path), Op.getChildren(path), Op.getData(path + "/none")));
            same("b", new String(((OpResult.GetDataResult) results.get(0)).getData()));
            same("[s0000000000, t]", ((OpResult.GetChildrenResult) results.get(1)).getChildren().stream().sorted().toList());
            same(-101, ((OpResult.ErrorResult) results.get(2)).getErr());
            same("[]", zk.multi(List.of()));
            Transaction transaction = zk.transaction();
            same(2, transaction.setData(path, bytes("d"), 1).delete(path + "/t", -1).commit().size());
        });
        check("authentication and ACLs", () -> {
            String path = root + "/acl";
            ZooKeeper owner = open(connect, event -> { });
            owner.addAuthInfo("digest", bytes("owner:secret"));
            owner.create(path, bytes("x"), ZooDefs.Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            same("x", new String(owner.getData(path, false, null)));
            fails(KeeperException.Code.NOAUTH, () -> zk.getData(path, false, null));
            fails(KeeperException.Code.NOAUTH, () -> zk.setData(path, null, -1));
            fails(KeeperException.Code.NOAUTH, () -> zk.getACL(path, null));
            fails(KeeperException.Code.NOAUTH, () -> zk.getChildren(path, false));
            fails(KeeperException.Code.NOAUTH, () -> zk.exists(path, false));
            same("[31,s{'digest,'owner:cLa6dXTi0LaHLFVCWpnRjNKVOUE='}\n]".substring(0, 20), owner.getACL(path, null).toString().substring(0, 20));
            owner.setACL(path, Arrays.asList(new ACL(ZooDefs.Perms.READ, ZooDefs.Ids.ANYONE_ID_UNSAFE), new ACL(31, new Id("auth", ""))), 0);
            same("x", new String(zk.getData(path, false, null)));
            same("[1, 31]", zk.getACL(path, null).stream().map(ACL::getPerms).toList());
            fails(KeeperException.Code.BADVERSION, () -> owner.setACL(path, OPEN, 0));
            fails(KeeperException.Code.INVALIDACL, () -> zk.create(path + "/x", null, ZooDefs.Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT));
            zk.delete(path, -1);
            owner.close();
            Events mine = new Events();
            ZooKeeper wrong = open(connect, mine);
            wrong.addAuthInfo("nonsense", bytes("x"));
            mine.state(KeeperState.AuthFailed);
            fails(KeeperException.Code.AUTHFAILED, () -> wrong.exists("/", false));
            wrong.close();
        });
        check("chroot", () -> {
            zk.create(root + "/home", null, OPEN, CreateMode.PERSISTENT);
            Events mine = new Events();
            ZooKeeper client = open(connect + root + "/home", mine);
            same("/a", client.create("/a", bytes("1"), OPEN, CreateMode.PERSISTENT));
            client.getData("/a", true, null);
            client.addWatch("/", AddWatchMode.PERSISTENT_RECURSIVE);
            zk.setData(root + "/home/a", bytes("2"), 0);
            same("NodeDataChanged /a", mine.next());
            same("[a]", client.getChildren("/", false));
            same("/a", client.multi(List.of(Op.create("/m", null, OPEN, CreateMode.EPHEMERAL), Op.delete("/m", 0))).size() == 2 ? "/a" : "");
            same("NodeCreated /m", mine.next());
            same("NodeDeleted /m", mine.next());
            client.close();
        });
        check("one-shot watches", () -> {
            String path = root + "/w";
            Events mine = new Events();
            ZooKeeper client = open(connect, mine);
            client.exists(path, true);
            zk.create(path, null, OPEN, CreateMode.PERSISTENT);
            same("NodeCreated " + path, mine.next());
            client.getData(path, true, null);
            client.getChildren(path, true);
            zk.create(path + "/c", null, OPEN, CreateMode.PERSISTENT);
            same("NodeChildrenChanged " + path, mine.next());
            zk.setData(path, bytes("1"), -1);
            same("NodeDataChanged " + path, mine.next());
            zk.setData(path, bytes("2"), -1);
            mine.none();
            client.getChildren(path, true);
            client.getData(path, true, null);
            zk.delete(path + "/c", -1);
            same("NodeChildrenChanged " + path, mine.next());
            client.getChildren(path, true);
            zk.delete(path, -1);
            same("NodeDeleted " + path, mine.next());
            mine.none();
            client.close();
        });
        check("persistent and recursive watches", () -> {
            String path = root + "/pw";
            Events one = new Events(), two = new Events();
            zk.create(path, null, OPEN, CreateMode.PERSISTENT);
            ZooKeeper client = open(connect, new Events());
            client.addWatch(path, one, AddWatchMode.PERSISTENT);
            client.addWatch(path, two, AddWatchMode.PERSISTENT_RECURSIVE);
            zk.create(path + "/a", null, OPEN, CreateMode.PERSISTENT);
            zk.create(path + "/a/b", null, OPEN, CreateMode.PERSISTENT);
            zk.setData(path + "/a/b", bytes("1"), -1);
            zk.setData(path, bytes("1"), -1);
            zk.delete(path + "/a/b", -1);
            zk.delete(path + "/a", -1);
            zk.delete(path, -1);
            for (String each : List.of("NodeChildrenChanged ", "NodeDataChanged ", "NodeChildrenChanged ", "NodeDeleted ")) same(each + path, one.next());
            for (String each : List.of("NodeCreated P/a", "NodeCreated P/a/b", "NodeDataChanged P/a/b", "NodeDataChanged P", "NodeDeleted P/a/b", "NodeDeleted P/a", "NodeDeleted P"))
                same(each.replace("P", path), two.next());
            client.removeWatches(path, two, Watcher.WatcherType.Any, false);
            same("PersistentWatchRemoved " + path, two.next());
            zk.create(path, null, OPEN, CreateMode.PERSISTENT);
            same("NodeCreated " + path, one.next());
            two.none();
            fails(KeeperException.Code.NOWATCHER, () -> client.removeWatches(path, two, Watcher.WatcherType.Any, false));
            client.removeAllWatches(path, Watcher.WatcherType.Any, false);
            same("PersistentWatchRemoved " + path, one.next());
            client.getData(path, one, null);
            client.removeWatches(path, one, Watcher.WatcherType.Data, false);
            same("DataWatchRemoved " + path, one.next());
            client.getChildren(path, one);
            client.removeWatches(path, one, Watcher.WatcherType.Children, false);
            same("ChildWatchRemoved " + path, one.next());
            client.close();
        });
        check("reconfig and config", () -> {
            byte[] config = zk.getConfig(false, new Stat());
            System.out.println("     config: " + new String(config).replace('\n', ' '));
            ZooKeeperAdmin admin = new ZooKeeperAdmin(connect, TIMEOUT_MS, event -> { });
            fails(KeeperException.Code.RECONFIGDISABLED, () -> admin.reconfigure(null, "3", null, -1, new Stat()));
            admin.close();
        });
        check("negotiated timeouts", () -> {
            for (int timeout : new int[] {100, 8_000, 1_000_000}) {
                ZooKeeper client = open(connect, event -> { }, timeout);
                System.out.println("     asked " + timeout + ", got " + client.getSessionTimeout());
                client.close();
            }
        });
        check("closing a session deletes its ephemerals and closes its other connection", () -> {
            Events mine = new Events();
            ZooKeeper first = open(connect, mine);
            first.create(root + "/mine", null, OPEN, CreateMode.EPHEMERAL);
            ZooKeeper second = new ZooKeeper(connect, TIMEOUT_MS, event -> { }, first.getSessionId(), first.getSessionPasswd());
            connected(second);
            same(first.getSessionId(), second.getSessionId());
            second.close();
            same(null, zk.exists(root + "/mine", false));
            mine.state(KeeperState.Expired);
            fails(KeeperException.Code.SESSIONEXPIRED, () -> first.exists("/", false));
            first.close();
        });
        check("a wrong password is rejected", () -> {
            Events mine = new Events();
            ZooKeeper thief = new ZooKeeper(connect, TIMEOUT_MS, mine, zk.getSessionId(), new byte[16]);
            mine.state(KeeperState.Expired);
            thief.close();
            same(true, retry(() -> zk.exists(root, false)) != null);
        });
        check("a client cut off for less than its timeout keeps its session and receives missed events", () -> {
            String path = root + "/cut";
            for (String each : List.of("", "/data", "/gone", "/children", "/same")) zk.create(path + each, null, OPEN, CreateMode.PERSISTENT);
            try (Proxy proxy = new Proxy(ports[0])) {
                Events mine = new Events();
                ZooKeeper client = open(proxy.address(), mine, 8_000);
                long session = client.getSessionId();
                client.create(path + "/eph", null, OPEN, CreateMode.EPHEMERAL);
                client.getData(path + "/data", true, null);
                client.getData(path + "/gone", true, null);
                client.getData(path + "/same", true, null);
                client.exists(path + "/new", true);
                client.getChildren(path + "/children", true);
                client.addWatch(path + "/same", AddWatchMode.PERSISTENT_RECURSIVE);
                proxy.cut();
                mine.state(KeeperState.Disconnected);
                zk.setData(path + "/data", bytes("1"), -1);
                zk.delete(path + "/gone", -1);
                zk.create(path + "/new", null, OPEN, CreateMode.PERSISTENT);
                zk.create(path + "/children/c", null, OPEN, CreateMode.PERSISTENT);
                Thread.sleep(1_500);
                proxy.mend();
                mine.state(KeeperState.SyncConnected);
                connected(client);
                Set<String> heard = new TreeSet<>();
                for (int i = 0; i < 4; i++) heard.add(mine.next().replace(path, ""));
                same("[NodeChildrenChanged /children, NodeCreated /new, NodeDataChanged /data, NodeDeleted /gone]", heard);
                mine.none();
                zk.setData(path + "/same", bytes("1"), -1);
                same("NodeDataChanged " + path + "/same", mine.next());
                zk.create(path + "/same/x", null, OPEN, CreateMode.PERSISTENT);
                same("NodeCreated " + path + "/same/x", mine.next());
                same(session, client.getSessionId());
                same(session, zk.exists(path + "/eph", false).getEphemeralOwner());
                client.close();
            }
        });
        check("the session of a client cut off for longer expires", () -> {
            try (Proxy proxy = new Proxy(ports[0])) {
                Events mine = new Events();
                ZooKeeper client = open(proxy.address(), mine, 4_000);
                client.create(root + "/expires", null, OPEN, CreateMode.EPHEMERAL);
                Events watching = new Events();
                zk.exists(root + "/expires", watching);
                long start = System.currentTimeMillis();
                proxy.cut();
                same("NodeDeleted " + root + "/expires", watching.next());
                System.out.println("     ephemeral gone after " + (System.currentTimeMillis() - start) + " ms of a 4,000 ms timeout");
                proxy.mend();
                mine.state(KeeperState.Expired);
                client.close();
            }
        });
        check("a container and a TTL node are deleted", () -> {
            if (System.getenv("SLOW") == null) return;
            String path = root + "/collected";
            zk.create(path, null, OPEN, CreateMode.PERSISTENT);
            zk.create(path + "/ttl", null, OPEN, CreateMode.PERSISTENT_WITH_TTL, new Stat(), 1_000);
            zk.create(path + "/container", null, OPEN, CreateMode.CONTAINER);
            zk.create(path + "/container/c", null, OPEN, CreateMode.EPHEMERAL);
            zk.create(path + "/fresh", null, OPEN, CreateMode.CONTAINER);
            zk.delete(path + "/container/c", -1);
            for (int i = 0; i < 180 && zk.exists(path, false).getNumChildren() > 1; i++) Thread.sleep(500);
            same("[fresh]", zk.getChildren(path, false));
        });
        check("a read-only client connects to a writable server", () -> {
            ZooKeeper client = new ZooKeeper(connect, TIMEOUT_MS, event -> { }, true);
            connected(client);
            client.setData(root, bytes("x"), -1);
            client.close();
        });
        check("100 clients", () -> {
            List<ZooKeeper> clients = new ArrayList<>();
            for (int i = 0; i < 100; i++) clients.add(new ZooKeeper(connect, 20_000, event -> { }));
            for (ZooKeeper each : clients) connected(each);
            for (ZooKeeper each : clients) each.create(root + "/hundred-", null, OPEN, CreateMode.EPHEMERAL_SEQUENTIAL);
            for (ZooKeeper each : clients) each.close();
            same(0, zk.getChildren(root, false).stream().filter(each -> each.startsWith("hundred")).count());
        });
        if (System.getenv("SERVERS") != null) {
            check("five kills: one session, no lost write, no lost event, no gap", () -> {
                String path = root + "/kills";
                Events mine = new Events();
                ZooKeeper client = open(connect, mine);
                long session = client.getSessionId();
                client.create(path, bytes("0"), OPEN, CreateMode.PERSISTENT);
                client.create(path + "/eph", null, OPEN, CreateMode.EPHEMERAL);
                client.addWatch(path, AddWatchMode.PERSISTENT_RECURSIVE);
                for (int kill = 0; kill < 5; kill++) {
                    int port = port(client);
                    client.getData(path, true, null);
                    servers("kill", port);
                    long start = System.nanoTime();
                    int before = kill;
                    int version = retry(() -> {
                        // After a write of unknown outcome the state is read before the write is retried.
                        Stat stat = client.exists(path, false);
                        return stat.getVersion() > before ? stat.getVersion() : client.setData(path, bytes("" + before), before).getVersion();
                    });
                    long gap = (System.nanoTime() - start) / 1_000_000;
                    same(kill + 1, version);
                    same("NodeDataChanged " + path, mine.next());
                    same(session, client.getSessionId());
                    same(session, client.exists(path + "/eph", false).getEphemeralOwner());
                    System.out.println("     kill " + kill + " of " + port + ": " + gap + " ms to the next write");
                    servers("restart", port);
                    Thread.sleep(1000);
                }
                mine.none();
                client.close();
            });
        }
        check("cleanup", () -> {
            retry(() -> ZKUtil.deleteRecursive(other, root, 1000));
            same(null, other.exists(root, false));
        });
        zk.close();
        other.close();
        System.out.println(failed == 0 ? "all passed" : failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
