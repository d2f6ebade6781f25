/* Tests the calls of ZooKeeper's multi-threaded C client, and its session while servers are killed.
   Prints one line per failed check. Argument: the connect string. SERVERS is a program that kills and restarts servers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <zookeeper/zookeeper.h>

static int failed;
static void same(const char *what, long wanted, long found) {
    if (wanted != found) { failed++; printf("FAIL %s: wanted %ld, found %ld\n", what, wanted, found); }
}
static void same_text(const char *what, const char *wanted, const char *found) {
    if (strcmp(wanted, found)) { failed++; printf("FAIL %s: wanted %s, found %s\n", what, wanted, found); }
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char heard[64][200];
static int heard_count, taken;
static volatile int state;

static void watcher(zhandle_t *handle, int type, int now, const char *path, void *context) {
    (void)handle; (void)context;
    if (type == ZOO_SESSION_EVENT) { state = now; return; }
    pthread_mutex_lock(&lock);
    snprintf(heard[heard_count++ % 64], 200, "%d %s", type, path);
    pthread_mutex_unlock(&lock);
}
static const char *next_event(void) {
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&lock);
        int has = taken < heard_count;
        pthread_mutex_unlock(&lock);
        if (has) return heard[taken++ % 64];
        usleep(10000);
    }
    return "none";
}
static zhandle_t *open_client(const char *servers, const clientid_t *id) {
    state = 0;
    zhandle_t *handle = zookeeper_init(servers, watcher, 8000, id, NULL, 0);
    for (int i = 0; i < 3000 && state != ZOO_CONNECTED_STATE; i++) usleep(10000);
    same("connected", ZOO_CONNECTED_STATE, state);
    return handle;
}
static volatile int answers;
static void on_data(int rc, const char *value, int length, const struct Stat *stat, const void *context) {
    (void)value;
    if (rc == ZOK && length == 3 && stat->version == (int)(long)context) answers++;
}
static void on_stat(int rc, const struct Stat *stat, const void *context) {
    if (rc == ZOK && stat->version == (int)(long)context) answers++;
}

int main(int count, char **arguments) {
    (void)count;
    const char *servers = arguments[1];
    char root[64], path[200], made[200], buffer[1024];
    struct Stat stat;
    int length;
    zoo_set_debug_level(0);
    zhandle_t *zk = open_client(servers, NULL);
    snprintf(root, sizeof root, "/c-%ld", (long)getpid());
#define P(suffix) (snprintf(path, sizeof path, "%s%s", root, suffix), path)
    same("create", ZOK, zoo_create(zk, root, "abc", 3, &ZOO_OPEN_ACL_UNSAFE, 0, made, sizeof made));
    same_text("created path", root, made);
    same("create again", ZNODEEXISTS, zoo_create(zk, root, "abc", 3, &ZOO_OPEN_ACL_UNSAFE, 0, made, sizeof made));
    same("create null", ZOK, zoo_create(zk, P("/null"), NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    length = sizeof buffer;
    same("get null", ZOK, zoo_get(zk, P("/null"), 0, buffer, &length, &stat));
    same("null length", -1, length);
    same("create2", ZOK, zoo_create2(zk, P("/two"), "x", 1, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, made, sizeof made, &stat));
    same("owner", zoo_client_id(zk)->client_id, stat.ephemeralOwner);
    same("sequential", ZOK, zoo_create(zk, P("/s-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, made, sizeof made));
    same_text("sequence", P("/s-0000000002"), made);
    same("container", ZOK, zoo_create(zk, P("/container"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_CONTAINER, made, sizeof made));
    same("ttl", ZOK, zoo_create_ttl(zk, P("/ttl"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_WITH_TTL, 60000, made, sizeof made));
    same("ttl2", ZOK, zoo_create2_ttl(zk, P("/ttl-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_SEQUENTIAL_WITH_TTL, 60000, made, sizeof made, &stat));
    same_text("ttl sequence", P("/ttl-0000000005"), made);
    same("child of ephemeral", ZNOCHILDRENFOREPHEMERALS, zoo_create(zk, P("/two/x"), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    same("set", ZOK, zoo_set2(zk, root, "def", 3, 0, &stat));
    same("version", 1, stat.version);
    same("bad version", ZBADVERSION, zoo_set(zk, root, "def", 3, 0));
    length = sizeof buffer;
    same("get", ZOK, zoo_get(zk, root, 0, buffer, &length, &stat));
    same("length", 3, length);
    same("children", 6, stat.numChildren);
    struct String_vector children;
    same("ls", ZOK, zoo_get_children(zk, root, 0, &children));
    same("ls count", 6, children.count);
    deallocate_String_vector(&children);
    same("ls2", ZOK, zoo_get_children2(zk, root, 0, &children, &stat));
    same("ls2 cversion", 6, stat.cversion);
    deallocate_String_vector(&children);
    same("exists", ZOK, zoo_exists(zk, root, 0, &stat));
    same("exists none", ZNONODE, zoo_exists(zk, P("/none"), 0, &stat));
    same("delete not empty", ZNOTEMPTY, zoo_delete(zk, root, -1));
    struct ACL_vector acl;
    same("acl", ZOK, zoo_get_acl(zk, root, &acl, &stat));
    same("acl count", 1, acl.count);
    deallocate_ACL_vector(&acl);
    same("set acl", ZOK, zoo_set_acl(zk, P("/null"), 0, &ZOO_READ_ACL_UNSAFE));
    same("no auth", ZNOAUTH, zoo_set(zk, P("/null"), "x", 1, -1));
    same("auth", ZOK, zoo_add_auth(zk, "digest", "u:p", 3, NULL, NULL));
    same("creator acl", ZOK, zoo_create(zk, P("/mine"), "", 0, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0));
    length = sizeof buffer;
    same("config", ZOK, zoo_getconfig(zk, 0, buffer, &length, &stat));
    same("reconfig", ZRECONFIGDISABLED, zoo_reconfig(zk, NULL, "3", NULL, -1, buffer, &length, &stat));

    zoo_op_t ops[4];
    zoo_op_result_t results[4];
    char one[200], two[200];
    snprintf(one, sizeof one, "%s/multi", root);
    snprintf(two, sizeof two, "%s/none", root);
    zoo_create_op_init(&ops[0], one, "a", 1, &ZOO_OPEN_ACL_UNSAFE, 0, made, sizeof made);
    zoo_set_op_init(&ops[1], one, "b", 1, 0, &stat);
    zoo_check_op_init(&ops[2], one, 1);
    zoo_delete_op_init(&ops[3], one, 1);
    same("multi", ZOK, zoo_multi(zk, 4, ops, results));
    zoo_delete_op_init(&ops[1], two, -1);
    same("multi fails", ZNONODE, zoo_multi(zk, 3, ops, results));
    same("result 0", ZOK, results[0].err);
    same("result 1", ZNONODE, results[1].err);
    same("result 2", ZRUNTIMEINCONSISTENCY, results[2].err);

    same("watch", ZNONODE, zoo_exists(zk, P("/w"), 1, &stat));
    same("create w", ZOK, zoo_create(zk, P("/w"), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    char wanted[200];
    snprintf(wanted, sizeof wanted, "%d %s/w", ZOO_CREATED_EVENT, root);
    same_text("created event", wanted, next_event());
    same("watch children", ZOK, zoo_wget_children(zk, P("/w"), watcher, NULL, &children));
    same("create child", ZOK, zoo_create(zk, P("/w/c"), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    snprintf(wanted, sizeof wanted, "%d %s/w", ZOO_CHILD_EVENT, root);
    same_text("child event", wanted, next_event());
    length = sizeof buffer;
    same("watch data", ZOK, zoo_wget(zk, P("/w/c"), watcher, NULL, buffer, &length, &stat));
    same("remove watches", ZOK, zoo_remove_watches(zk, P("/w/c"), ZWATCHTYPE_DATA, watcher, NULL, 0));
    same("no watcher", ZNOWATCHER, zoo_remove_watches(zk, P("/w/c"), ZWATCHTYPE_DATA, watcher, NULL, 0));
    while (taken < heard_count) taken++;

    for (long i = 1; i <= 500; i++) {
        zoo_aset(zk, root, "ghi", 3, i, on_stat, (void *)(i + 1));
        zoo_aget(zk, root, 0, on_data, (void *)(i + 1));
    }
    for (int i = 0; i < 1000 && answers < 1000; i++) usleep(10000);
    same("answers in order", 1000, answers);

    zhandle_t *other = open_client(servers, NULL);
    for (int kill = 0; getenv("SERVERS") && kill < 4; kill++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        if (!zookeeper_get_connected_host(zk, (struct sockaddr *)&address, &size)) { failed++; printf("FAIL no host\n"); break; }
        int port = ntohs(((struct sockaddr_in *)&address)->sin_port);
        clientid_t before = *zoo_client_id(zk);
        length = sizeof buffer;
        while (zoo_get(zk, root, 1, buffer, &length, &stat) != ZOK) usleep(50000);
        int version = stat.version;
        char command[300];
        snprintf(command, sizeof command, "%s kill %d", getenv("SERVERS"), port);
        same("kill", 0, system(command));
        int rc;
        for (int i = 0; i < 800 && (rc = zoo_set(other, root, "jkl", 3, version)) == ZCONNECTIONLOSS; i++) usleep(50000);
        if (rc != ZOK && rc != ZBADVERSION) same("set while a server is dead", ZOK, rc);
        snprintf(wanted, sizeof wanted, "%d %s", ZOO_CHANGED_EVENT, root);
        same_text("event after the kill", wanted, next_event());
        for (int i = 0; i < 800 && (rc = zoo_exists(zk, P("/two"), 0, &stat)) == ZCONNECTIONLOSS; i++) usleep(50000);
        same("ephemeral", ZOK, rc);
        same("session", before.client_id, zoo_client_id(zk)->client_id);
        snprintf(command, sizeof command, "%s restart %d", getenv("SERVERS"), port);
        same("restart", 0, system(command));
        sleep(1);
    }
    clientid_t id = *zoo_client_id(zk);
    zhandle_t *moved = open_client(servers, &id);
    same("moved session", id.client_id, zoo_client_id(moved)->client_id);
    same("close", ZOK, zookeeper_close(moved));
    int rc;
    for (int i = 0; i < 100 && (rc = zoo_exists(other, P("/two"), 0, &stat)) != ZNONODE; i++) usleep(50000);
    same("ephemeral gone", ZNONODE, rc);
    for (int i = 0; i < 600 && !is_unrecoverable(zk); i++) usleep(50000);
    same("expired", 1, is_unrecoverable(zk) != 0);
    zookeeper_close(zk);
    zookeeper_close(other);
    printf(failed ? "%d failed\n" : "all passed\n", failed);
    return failed != 0;
}
