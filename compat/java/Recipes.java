import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.curator.RetryPolicy;
import org.apache.curator.framework.*;
import org.apache.curator.framework.api.transaction.*;
import org.apache.curator.framework.recipes.atomic.*;
import org.apache.curator.framework.recipes.barriers.*;
import org.apache.curator.framework.recipes.cache.*;
import org.apache.curator.framework.recipes.leader.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.framework.recipes.nodes.*;
import org.apache.curator.framework.recipes.queue.*;
import org.apache.curator.framework.recipes.shared.*;
import org.apache.curator.framework.recipes.watch.*;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.*;
import org.apache.curator.x.discovery.*;
import org.apache.zookeeper.*;
import org.apache.zookeeper.data.Stat;

/** Tests Curator's recipes, first without faults, then while the server of a client is killed repeatedly. */
public class Recipes {
    interface Check { void run() throws Exception; }
    static String connect;
    static int failed;
    static final List<CuratorFramework> clients = new ArrayList<>();

    static CuratorFramework client() throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.builder().connectString(connect).sessionTimeoutMs(10_000).connectionTimeoutMs(10_000)
            .retryPolicy(new RetryNTimes(100, 200)).namespace(namespace).build();
        client.start();
        if (!client.blockUntilConnected(30, TimeUnit.SECONDS)) throw new AssertionError("not connected");
        clients.add(client);
        return client;
    }
    static String namespace = "curator-" + Long.toHexString(System.nanoTime());
    static byte[] bytes(String text) { return text.getBytes(StandardCharsets.UTF_8); }
    static void same(Object wanted, Object found) {
        if (!String.valueOf(wanted).equals(String.valueOf(found))) throw new AssertionError("wanted " + wanted + ", found " + found);
    }
    static void eventually(Object wanted, Callable<?> read) throws Exception {
        for (long end = System.currentTimeMillis() + 20_000; System.currentTimeMillis() < end; Thread.sleep(20))
            if (String.valueOf(wanted).equals(String.valueOf(read.call()))) return;
        same(wanted, read.call());
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
    static Thread thread(Check check) {
        Thread thread = new Thread(() -> { try { check.run(); } catch (Throwable error) { errors.add(error); } });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
    static final Queue<Throwable> errors = new ConcurrentLinkedQueue<>();
    static int port(CuratorFramework client) throws Exception {
        for (int i = 0; i < 400; i++, Thread.sleep(50)) {
            var match = java.util.regex.Pattern.compile("remoteserver:[^:]*:(\\d+)").matcher(client.getZookeeperClient().getZooKeeper().toString());
            if (match.find()) return Integer.parseInt(match.group(1));
        }
        throw new AssertionError("not connected");
    }
    static void servers(String action, int port) throws Exception {
        Process process = new ProcessBuilder(System.getenv("SERVERS"), action, String.valueOf(port)).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes());
        if (process.waitFor() != 0) throw new AssertionError(action + " " + port + ": " + said);
    }

    public static void main(String[] arguments) throws Exception {
        connect = arguments[0];
        CuratorFramework a = client(), b = client(), c = client();
        check("framework", () -> {
            a.create().creatingParentsIfNeeded().forPath("/f/x/y", bytes("1"));
            same("/f/x/s0000000001", a.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath("/f/x/s"));
            same(true, a.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/f/x/p").contains("_c_"));
            same("/f/x/y", a.create().orSetData().forPath("/f/x/y", bytes("2")));
            eventually("2", () -> new String(b.getData().forPath("/f/x/y")));
            a.create().creatingParentContainersIfNeeded().forPath("/g/h/i");
            eventually(true, () -> b.checkExists().forPath("/g/h/i") != null);
            a.create().withTtl(5000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath("/g/ttl");
            a.setData().withVersion(1).forPath("/f/x/y", bytes("3"));
            a.setData().idempotent().withVersion(2).forPath("/f/x/y", bytes("4"));
            Stat stat = new Stat();
            same("4", new String(a.getData().storingStatIn(stat).forPath("/f/x/y")));
            same(3, stat.getVersion());
            a.setData().compressed().forPath("/f/x/y", bytes("z".repeat(1000)));
            eventually(1000, () -> b.getData().decompressed().forPath("/f/x/y").length);
            CountDownLatch background = new CountDownLatch(3);
            a.getChildren().inBackground((client, event) -> { same(3, event.getChildren().size()); background.countDown(); }).forPath("/f/x");
            a.checkExists().creatingParentContainersIfNeeded().inBackground((client, event) -> background.countDown()).forPath("/f/new/x");
            a.sync().inBackground((client, event) -> background.countDown()).forPath("/f");
            same(true, background.await(10, TimeUnit.SECONDS));
            a.delete().guaranteed().deletingChildrenIfNeeded().forPath("/f");
            a.delete().quietly().forPath("/f");
            eventually(null, () -> b.checkExists().forPath("/f"));
            same(1, a.getACL().forPath("/").size());
        });
        check("transaction", () -> {
            var results = a.transaction().forOperations(a.transactionOp().create().forPath("/tx", bytes("1")), a.transactionOp().setData().withVersion(0).forPath("/tx", bytes("2")),
                a.transactionOp().check().withVersion(1).forPath("/tx"), a.transactionOp().create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/tx/e"));
            same(4, results.size());
            same("/tx/e0000000000", results.get(3).getResultPath());
            try { a.transaction().forOperations(a.transactionOp().delete().forPath("/tx/e0000000000"), a.transactionOp().check().withVersion(7).forPath("/tx")); throw new AssertionError("done"); }
            catch (KeeperException.BadVersionException error) { same(2, error.getResults().size()); }
            eventually(1, () -> b.getChildren().forPath("/tx").size());
        });
        check("InterProcessMutex, ReadWriteLock, MultiLock", () -> {
            InterProcessMutex one = new InterProcessMutex(a, "/mutex"), two = new InterProcessMutex(b, "/mutex");
            one.acquire(); one.acquire();
            same(false, two.acquire(300, TimeUnit.MILLISECONDS));
            one.release(); one.release();
            same(true, two.acquire(5, TimeUnit.SECONDS));
            same(1, one.getParticipantNodes().size());
            two.release();
            InterProcessReadWriteLock ra = new InterProcessReadWriteLock(a, "/rw"), rb = new InterProcessReadWriteLock(b, "/rw");
            ra.readLock().acquire(); rb.readLock().acquire();
            same(false, rb.writeLock().acquire(300, TimeUnit.MILLISECONDS));
            rb.readLock().release(); ra.readLock().release();
            same(true, rb.writeLock().acquire(5, TimeUnit.SECONDS));
            same(false, ra.readLock().acquire(300, TimeUnit.MILLISECONDS));
            rb.writeLock().release();
            InterProcessMultiLock multi = new InterProcessMultiLock(a, List.of("/ml/1", "/ml/2"));
            same(true, multi.acquire(5, TimeUnit.SECONDS));
            multi.release();
            InterProcessSemaphoreMutex plain = new InterProcessSemaphoreMutex(a, "/smutex");
            plain.acquire(); plain.release();
        });
        check("InterProcessSemaphoreV2", () -> {
            InterProcessSemaphoreV2 one = new InterProcessSemaphoreV2(a, "/sem", 2), two = new InterProcessSemaphoreV2(b, "/sem", 2);
            Lease first = one.acquire(), second = two.acquire();
            same(null, two.acquire(300, TimeUnit.MILLISECONDS));
            one.returnLease(first);
            Lease third = two.acquire(5, TimeUnit.SECONDS);
            same(true, third != null);
            two.returnAll(List.of(second, third));
        });
        check("LeaderLatch and LeaderSelector", () -> {
            LeaderLatch one = new LeaderLatch(a, "/latch", "a"), two = new LeaderLatch(b, "/latch", "b");
            one.start();
            same(true, one.await(10, TimeUnit.SECONDS));
            two.start();
            eventually(2, () -> two.getParticipants().size());
            same("a", two.getLeader().getId());
            one.close();
            same(true, two.await(10, TimeUnit.SECONDS));
            two.close();
            BlockingQueue<String> leaders = new LinkedBlockingQueue<>();
            List<LeaderSelector> selectors = new ArrayList<>();
            for (CuratorFramework each : List.of(a, b, c)) {
                String id = "" + selectors.size();
                LeaderSelector selector = new LeaderSelector(each, "/selector", new LeaderSelectorListenerAdapter() {
                    @Override public void takeLeadership(CuratorFramework client) throws Exception { leaders.add(id); Thread.sleep(20); }
                });
                selector.autoRequeue();
                selectors.add(selector);
                selector.start();
            }
            Set<String> seen = new HashSet<>();
            for (int i = 0; i < 100 && seen.size() < 3; i++) seen.add(String.valueOf(leaders.poll(10, TimeUnit.SECONDS)));
            same("[0, 1, 2]", new TreeSet<>(seen));
            for (LeaderSelector each : selectors) each.close();
        });
        check("DistributedBarrier and DistributedDoubleBarrier", () -> {
            DistributedBarrier barrier = new DistributedBarrier(a, "/barrier");
            barrier.setBarrier();
            same(false, new DistributedBarrier(b, "/barrier").waitOnBarrier(200, TimeUnit.MILLISECONDS));
            CountDownLatch passed = new CountDownLatch(1);
            thread(() -> { new DistributedBarrier(b, "/barrier").waitOnBarrier(); passed.countDown(); });
            Thread.sleep(100);
            barrier.removeBarrier();
            same(true, passed.await(10, TimeUnit.SECONDS));
            AtomicInteger inside = new AtomicInteger(), left = new AtomicInteger();
            List<Thread> threads = new ArrayList<>();
            for (CuratorFramework each : List.of(a, b, c)) threads.add(thread(() -> {
                DistributedDoubleBarrier both = new DistributedDoubleBarrier(each, "/double", 3);
                same(true, both.enter(20, TimeUnit.SECONDS));
                inside.incrementAndGet();
                same(true, both.leave(20, TimeUnit.SECONDS));
                same(3, inside);
                left.incrementAndGet();
            }));
            for (Thread each : threads) each.join(30_000);
            same(3, left);
        });
        check("SharedCount, DistributedAtomicLong, DistributedAtomicValue", () -> {
            try (SharedCount one = new SharedCount(a, "/count", 5); SharedCount two = new SharedCount(b, "/count", 5)) {
                one.start(); two.start();
                one.setCount(7);
                eventually(7, two::getCount);
                same(true, two.trySetCount(two.getVersionedValue(), 8));
                eventually(8, one::getCount);
            }
            DistributedAtomicLong number = new DistributedAtomicLong(a, "/long", new RetryNTimes(10, 10));
            same(true, number.initialize(10L));
            for (int i = 0; i < 20; i++) same(true, number.increment().succeeded());
            same(30, number.get().postValue());
            same(true, number.compareAndSet(30L, 5L).succeeded());
            same(false, number.compareAndSet(30L, 6L).succeeded());
            PromotedToLock lock = PromotedToLock.builder().lockPath("/promoted").timeout(10, TimeUnit.SECONDS).retryPolicy(new RetryNTimes(100, 10)).build();
            List<Thread> threads = new ArrayList<>();
            for (CuratorFramework each : List.of(a, b, c)) threads.add(thread(() -> {
                DistributedAtomicLong mine = new DistributedAtomicLong(each, "/contended", new RetryNTimes(1, 10), lock);
                for (int i = 0; i < 30; i++) same(true, mine.increment().succeeded());
            }));
            for (Thread each : threads) each.join(60_000);
            same(90, new DistributedAtomicLong(a, "/contended", new RetryNTimes(10, 10)).get().postValue());
        });
        check("caches", () -> {
            a.create().creatingParentsIfNeeded().forPath("/cache/x/y", bytes("1"));
            try (PathChildrenCache children = new PathChildrenCache(b, "/cache", true); NodeCache node = new NodeCache(b, "/cache/x/y"); TreeCache tree = new TreeCache(b, "/cache");
                CuratorCache cache = CuratorCache.build(b, "/cache"); CuratorCache single = CuratorCache.build(b, "/cache/x", CuratorCache.Options.SINGLE_NODE_CACHE)) {
                children.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE); node.start(true); tree.start(); cache.start(); single.start();
                same("1", new String(node.getCurrentData().getData()));
                eventually(3, cache::size);
                for (int i = 0; i < 200; i++) a.create().forPath("/cache/n" + i, bytes("" + i));
                a.setData().forPath("/cache/x/y", bytes("2"));
                eventually("2", () -> new String(node.getCurrentData().getData()));
                eventually("2", () -> new String(cache.get("/cache/x/y").get().getData()));
                eventually("2", () -> new String(tree.getCurrentData("/cache/x/y").getData()));
                eventually(203, cache::size);
                eventually(201, () -> children.getCurrentData().size());
                eventually(201, () -> tree.getCurrentChildren("/cache").size());
                for (int i = 0; i < 200; i += 2) a.delete().forPath("/cache/n" + i);
                a.delete().deletingChildrenIfNeeded().forPath("/cache/x/y");
                eventually(102, cache::size);
                eventually(101, () -> children.getCurrentData().size());
                eventually(101, () -> tree.getCurrentChildren("/cache").size());
                eventually(null, node::getCurrentData);
                a.setData().forPath("/cache/x", bytes("3"));
                eventually("3", () -> new String(single.get("/cache/x").get().getData()));
            }
        });
        check("PersistentNode, PersistentTtlNode, GroupMember, PersistentWatcher", () -> {
            try (PersistentNode node = new PersistentNode(a, CreateMode.EPHEMERAL, false, "/persistent", bytes("1")); GroupMember one = new GroupMember(a, "/group", "a"); GroupMember two = new GroupMember(b, "/group", "b");
                PersistentTtlNode ttl = new PersistentTtlNode(a, "/pttl", 10_000, bytes("x"))) {
                node.start(); one.start(); two.start(); ttl.start();
                same(true, node.waitForInitialCreate(10, TimeUnit.SECONDS));
                same(true, ttl.waitForInitialCreate(10, TimeUnit.SECONDS));
                b.delete().forPath("/persistent");
                eventually(true, () -> b.checkExists().forPath("/persistent") != null);
                node.setData(bytes("2"));
                eventually("2", () -> new String(b.getData().forPath("/persistent")));
                eventually("[a, b]", () -> one.getCurrentMembers().keySet());
            }
            BlockingQueue<String> heard = new LinkedBlockingQueue<>();
            try (PersistentWatcher watcher = new PersistentWatcher(a, "/pw", true)) {
                watcher.getListenable().addListener(event -> { if (event.getPath() != null) heard.add(event.getType() + event.getPath()); });
                CountDownLatch reset = new CountDownLatch(1);
                watcher.getResetListenable().addListener(reset::countDown);
                watcher.start();
                same(true, reset.await(10, TimeUnit.SECONDS));
                b.create().creatingParentsIfNeeded().forPath("/pw/x");
                same("NodeCreated/pw", heard.poll(10, TimeUnit.SECONDS));
                same("NodeCreated/pw/x", heard.poll(10, TimeUnit.SECONDS));
            }
        });
        check("queues", () -> {
            QueueSerializer<String> text = new QueueSerializer<>() {
                @Override public byte[] serialize(String item) { return bytes(item); }
                @Override public String deserialize(byte[] item) { return new String(item); }
            };
            BlockingQueue<String> taken = new LinkedBlockingQueue<>();
            QueueConsumer<String> consumer = new QueueConsumer<>() {
                @Override public void consumeMessage(String item) { taken.add(item); }
                @Override public void stateChanged(CuratorFramework client, ConnectionState state) { }
            };
            try (DistributedQueue<String> out = QueueBuilder.builder(a, null, text, "/queue").buildQueue(); DistributedQueue<String> in = QueueBuilder.builder(b, consumer, text, "/queue").lockPath("/queuelock").buildQueue()) {
                out.start(); in.start();
                for (int i = 0; i < 50; i++) out.put("" + i);
                for (int i = 0; i < 50; i++) same(i, taken.poll(10, TimeUnit.SECONDS));
            }
            try (DistributedPriorityQueue<String> queue = QueueBuilder.builder(a, null, text, "/pqueue").buildPriorityQueue(0)) {
                queue.start(); queue.put("low", 10); queue.put("high", 1);
                eventually(2, () -> a.getChildren().forPath("/pqueue").size());
            }
            SimpleDistributedQueue simple = new SimpleDistributedQueue(a, "/simple");
            simple.offer(bytes("1")); simple.offer(bytes("2"));
            same("1", new String(new SimpleDistributedQueue(b, "/simple").take()));
            same("2", new String(simple.poll(1, TimeUnit.SECONDS)));
        });
        check("service discovery", () -> {
            ServiceInstance<Void> instance = ServiceInstance.<Void>builder().name("web").address("10.0.0.1").port(80).build();
            try (ServiceDiscovery<Void> one = ServiceDiscoveryBuilder.builder(Void.class).client(a).basePath("/services").thisInstance(instance).build();
                ServiceDiscovery<Void> two = ServiceDiscoveryBuilder.builder(Void.class).client(b).basePath("/services").build()) {
                one.start(); two.start();
                eventually(1, () -> two.queryForInstances("web").size());
                ServiceProvider<Void> provider = two.serviceProviderBuilder().serviceName("web").build();
                provider.start();
                eventually(80, () -> provider.getInstance().getPort());
                one.unregisterService(instance);
                eventually(null, provider::getInstance);
                provider.close();
            }
        });
        if (System.getenv("SERVERS") != null) kills(Integer.parseInt(System.getenv().getOrDefault("KILLS", "10")));
        if (failed == 0) check("clean-up", () -> a.delete().guaranteed().deletingChildrenIfNeeded().forPath("/"));
        for (Throwable error : errors) { failed++; System.out.println("FAIL in a thread: " + error); if (System.getenv("TRACE") != null) error.printStackTrace(System.out); }
        for (CuratorFramework each : clients) each.close();
        System.out.println(failed == 0 ? "all passed" : failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    /** All recipes concurrently, while servers are killed. */
    static void kills(int count) throws Exception {
        check(count + " kills", () -> {
            AtomicBoolean stop = new AtomicBoolean();
            List<CuratorFramework> mine = new ArrayList<>();
            for (int i = 0; i < 4; i++) mine.add(client());
            AtomicInteger lost = new AtomicInteger();
            List<Thread> threads = new ArrayList<>();
            AtomicInteger holders = new AtomicInteger(), grants = new AtomicInteger(), permits = new AtomicInteger(), leases = new AtomicInteger(), overlaps = new AtomicInteger();
            AtomicInteger leaders = new AtomicInteger(), reigns = new AtomicInteger(), rounds = new AtomicInteger(), writers = new AtomicInteger(), readers = new AtomicInteger(), rw = new AtomicInteger();
            AtomicLong plain = new AtomicLong();
            long[] increments = new long[4];
            List<LeaderSelector> selectors = new ArrayList<>();
            List<AutoCloseable> open = new ArrayList<>();
            mine.get(0).create().orSetData().creatingParentsIfNeeded().forPath("/k/unlocked", bytes("0"));
            mine.get(0).create().orSetData().forPath("/k/locked", bytes("0"));
            for (int i = 0; i < 4; i++) {
                CuratorFramework client = mine.get(i);
                int me = i;
                client.getConnectionStateListenable().addListener((ignored, state) -> { if (state == ConnectionState.LOST) lost.incrementAndGet(); });
                threads.add(thread(() -> { // a counter under a mutex, read and written without a version
                    InterProcessMutex mutex = new InterProcessMutex(client, "/k/mutex");
                    while (!stop.get()) {
                        mutex.acquire();
                        try {
                            if (holders.incrementAndGet() != 1) overlaps.incrementAndGet();
                            long value = Long.parseLong(new String(client.getData().forPath("/k/locked")));
                            if (value != plain.get()) overlaps.incrementAndGet();
                            client.setData().forPath("/k/locked", bytes("" + (value + 1)));
                            plain.incrementAndGet();
                            grants.incrementAndGet();
                        } finally {
                            holders.decrementAndGet();
                            mutex.release();
                        }
                        Thread.sleep(5);
                    }
                }));
                threads.add(thread(() -> { // a monotonic counter
                    DistributedAtomicLong number = new DistributedAtomicLong(client, "/k/long", new RetryNTimes(1000, 10));
                    long before = -1;
                    while (!stop.get()) {
                        AtomicValue<Long> value;
                        try { value = number.increment(); } catch (KeeperException.ConnectionLossException unknown) { continue; }
                        if (value.succeeded()) {
                            if (value.postValue() <= before) throw new AssertionError("counter went from " + before + " to " + value.postValue());
                            before = value.postValue();
                            increments[me]++;
                        }
                        Thread.sleep(5);
                    }
                }));
                threads.add(thread(() -> {
                    InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, "/k/semaphore", 2);
                    while (!stop.get()) {
                        Lease lease = semaphore.acquire(60, TimeUnit.SECONDS);
                        if (lease == null) throw new AssertionError("no lease in 60 s");
                        if (permits.incrementAndGet() > 2) overlaps.incrementAndGet();
                        Thread.sleep(5);
                        permits.decrementAndGet();
                        leases.incrementAndGet();
                        semaphore.returnLease(lease);
                    }
                }));
                threads.add(thread(() -> {
                    InterProcessReadWriteLock lock = new InterProcessReadWriteLock(client, "/k/rw");
                    boolean writes = me % 2 == 0;
                    while (!stop.get()) {
                        InterProcessMutex side = writes ? lock.writeLock() : lock.readLock();
                        if (!side.acquire(60, TimeUnit.SECONDS)) throw new AssertionError("no lock in 60 s");
                        if (writes ? writers.incrementAndGet() != 1 || readers.get() != 0 : readers.incrementAndGet() > 2 | writers.get() != 0) overlaps.incrementAndGet();
                        Thread.sleep(5);
                        (writes ? writers : readers).decrementAndGet();
                        rw.incrementAndGet();
                        side.release();
                        Thread.sleep(5);
                    }
                }));
                LeaderSelector selector = new LeaderSelector(client, "/k/selector", new LeaderSelectorListenerAdapter() {
                    @Override public void takeLeadership(CuratorFramework ignored) throws Exception {
                        if (leaders.incrementAndGet() != 1) overlaps.incrementAndGet();
                        reigns.incrementAndGet();
                        try { Thread.sleep(50); } finally { leaders.decrementAndGet(); }
                    }
                    @Override public void stateChanged(CuratorFramework ignored, ConnectionState state) { } // the session continues
                });
                selector.autoRequeue();
                selector.start();
                selectors.add(selector);
            }
            CuratorFramework writer = mine.get(0), reader = mine.get(1);
            PersistentNode persistent = new PersistentNode(reader, CreateMode.EPHEMERAL, false, "/k/persistent", bytes("x"));
            persistent.start();
            GroupMember member = new GroupMember(writer, "/k/group", "w"), member2 = new GroupMember(reader, "/k/group", "r");
            member.start(); member2.start();
            CuratorCache cache = CuratorCache.build(reader, "/k/cached");
            cache.start();
            TreeCache tree = new TreeCache(reader, "/k/cached");
            tree.start();
            SharedCount shared = new SharedCount(reader, "/k/shared", 0);
            shared.start();
            threads.add(thread(() -> {
                writer.create().orSetData().creatingParentsIfNeeded().forPath("/k/cached");
                for (int i = 0; !stop.get(); i++, Thread.sleep(10)) {
                    writer.create().orSetData().forPath("/k/cached/" + i % 100, bytes("" + i));
                    if (i % 7 == 0) writer.delete().quietly().forPath("/k/cached/" + (i * 3) % 100);
                }
            }));
            QueueSerializer<String> text = new QueueSerializer<>() {
                @Override public byte[] serialize(String item) { return bytes(item); }
                @Override public String deserialize(byte[] item) { return new String(item); }
            };
            Map<String, Integer> consumed = new ConcurrentHashMap<>();
            DistributedQueue<String> in = QueueBuilder.builder(reader, new QueueConsumer<String>() {
                @Override public void consumeMessage(String item) { consumed.merge(item, 1, Integer::sum); }
                @Override public void stateChanged(CuratorFramework client, ConnectionState state) { }
            }, text, "/k/queue").lockPath("/k/queuelock").buildQueue();
            in.start();
            DistributedQueue<String> out = QueueBuilder.builder(writer, null, text, "/k/queue").buildQueue();
            out.start();
            AtomicInteger put = new AtomicInteger();
            threads.add(thread(() -> { while (!stop.get()) { out.put("" + put.getAndIncrement()); Thread.sleep(30); } }));
            threads.add(thread(() -> {
                List<Thread> enter = new ArrayList<>();
                while (!stop.get()) {
                    String path = "/k/barrier" + rounds.get();
                    AtomicInteger inside = new AtomicInteger();
                    AtomicBoolean isBroken = new AtomicBoolean(), isEarly = new AtomicBoolean();
                    enter.clear();
                    for (int i = 0; i < 3; i++) {
                        CuratorFramework client = mine.get(i);
                        enter.add(thread(() -> {
                            DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(client, path, 3);
                            try { if (!barrier.enter(5, TimeUnit.SECONDS)) { isBroken.set(true); barrier.leave(1, TimeUnit.SECONDS); return; } }
                            catch (KeeperException waiting) { isBroken.set(true); return; } // the recipe gives up when its connection is lost
                            inside.incrementAndGet();
                            try { barrier.leave(5, TimeUnit.SECONDS); } catch (KeeperException waiting) { isBroken.set(true); }
                            if (inside.get() != 3) isEarly.set(true);
                        }));
                    }
                    for (Thread each : enter) each.join();
                    if (isEarly.get() && !isBroken.get()) throw new AssertionError("left before all entered: " + path);
                    rounds.incrementAndGet();
                }
            }));
            Random random = new Random(1);
            long slowest = 0;
            for (int kill = 0; kill < count; kill++) {
                Thread.sleep(1_500 + random.nextInt(1_000));
                CuratorFramework victim = mine.get(random.nextInt(4));
                int port = port(victim);
                int before = grants.get();
                servers("kill", port);
                long start = System.nanoTime();
                victim.checkExists().forPath("/k");
                long gap = (System.nanoTime() - start) / 1_000_000;
                for (int i = 0; i < 3_000 && grants.get() <= before + 2; i++) Thread.sleep(10);
                long granted = (System.nanoTime() - start) / 1_000_000;
                slowest = Math.max(slowest, granted);
                System.out.println("     kill " + kill + " of " + port + ": next reply " + gap + " ms, next lock " + granted + " ms");
                servers("restart", port);
            }
            Thread.sleep(1_500);
            stop.set(true);
            for (Thread each : threads) { each.join(70_000); if (each.isAlive()) errors.add(new AssertionError("a thread hangs: " + Arrays.toString(each.getStackTrace()))); }
            for (LeaderSelector each : selectors) each.close();
            System.out.println("     grants " + grants + ", leases " + leases + ", read-write " + rw + ", leaders " + reigns + ", barriers " + rounds + ", increments " + Arrays.stream(increments).sum() + ", queued " + put + ", sessions lost " + lost);
            same(0, overlaps);
            same(0, lost);
            same(grants.get(), new String(mine.get(2).getData().forPath("/k/locked")));
            long counted = new DistributedAtomicLong(mine.get(3), "/k/long", new RetryNTimes(10, 10)).get().postValue(), acknowledged = Arrays.stream(increments).sum();
            if (counted < acknowledged) throw new AssertionError("counter is " + counted + " after " + acknowledged + " acknowledged increments");
            System.out.println("     counter " + counted + " after " + acknowledged + " acknowledged increments");
            Map<String, String> truth = new TreeMap<>();
            for (String each : mine.get(2).getChildren().forPath("/k/cached")) truth.put(each, new String(mine.get(2).getData().forPath("/k/cached/" + each)));
            eventually(truth, () -> {
                Map<String, String> cached = new TreeMap<>();
                cache.stream().filter(each -> !each.getPath().equals("/k/cached")).forEach(each -> cached.put(each.getPath().substring(10), new String(each.getData())));
                return cached;
            });
            eventually(truth, () -> {
                Map<String, String> cached = new TreeMap<>();
                tree.getCurrentChildren("/k/cached").forEach((name, each) -> cached.put(name, new String(each.getData())));
                return cached;
            });
            out.flushPuts(10, TimeUnit.SECONDS);
            // If the call that created an item's lock lost its connection, the item stays in the queue: the recipe attributes the lock to another consumer.
            AtomicInteger stuck = new AtomicInteger();
            Thread.sleep(2_000);
            eventually("[]", () -> {
                Set<String> missing = new TreeSet<>();
                for (int i = 0; i < put.get(); i++) missing.add("" + i);
                missing.removeAll(consumed.keySet());
                List<String> locked = mine.get(2).getChildren().forPath("/k/queuelock"), queued = mine.get(2).getChildren().forPath("/k/queue");
                queued.retainAll(locked);
                stuck.set(queued.size());
                for (String each : queued) {
                    if (mine.get(2).checkExists().forPath("/k/queue/" + each) == null) continue;
                    byte[] item = mine.get(2).getData().forPath("/k/queue/" + each); // a version, a tag, a length; the item; a tag
                    missing.remove(new String(item, 9, item.length - 10));
                }
                return missing;
            });
            System.out.println("     queue: " + consumed.values().stream().filter(each -> each > 1).count() + " of " + put + " delivered twice, " + stuck + " stuck behind the consumer's own lock");
            eventually(true, () -> mine.get(2).checkExists().forPath("/k/persistent") != null);
            eventually("[r, w]", () -> member.getCurrentMembers().keySet());
            shared.setCount(5);
            same("5", java.nio.ByteBuffer.wrap(mine.get(2).getData().forPath("/k/shared")).getInt());
            for (AutoCloseable each : new AutoCloseable[] {in, out, cache, tree, shared, persistent, member, member2}) each.close();
        });
    }
}
