BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v0001');
CREATE TABLE audit (
	seq BIGINT NOT NULL, 
	record BLOB NOT NULL, 
	hash BLOB NOT NULL, 
	PRIMARY KEY (seq)
);
INSERT INTO "audit" VALUES(1,X'6F6E65',X'4E233BA6AC7032D3894ECEA5974FD96176E564B024AF45747EB46357AF8D2401');
INSERT INTO "audit" VALUES(2,X'74776F',X'B9F0CC527D38EA48D83C4C438121181AB01D99E83415306BE2AC88792C40A8F3');
CREATE TABLE events (
	execution_id TEXT NOT NULL, 
	first_seq BIGINT NOT NULL, 
	last_seq BIGINT NOT NULL, 
	lines BLOB NOT NULL, 
	PRIMARY KEY (execution_id, first_seq)
);
INSERT INTO "events" VALUES('ex1',1,3,X'7801AB562A4E2D54B232ACE5AA86B08CE02CE35A2E008FFB08F2');
CREATE TABLE executions (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	sandbox_id TEXT, 
	state TEXT NOT NULL, 
	request_id TEXT NOT NULL, 
	asked TEXT NOT NULL, 
	body BLOB, 
	on_disconnect TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	answer TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (seq)
);
INSERT INTO "executions" VALUES('ex1','moss',1,NULL,'ended','r1','{"language":"python"}',NULL,'detach',101.0,150.0,200.0,'{"verdict":"ok"}');
INSERT INTO "executions" VALUES('ex2','moss',2,NULL,'running','r2','{"language":"python"}',NULL,'detach',102.0,151.0,NULL,NULL);
INSERT INTO "executions" VALUES('ex3','moss',3,NULL,'queued','r3','{"language":"python"}',X'7072696E74283329','detach',103.0,NULL,NULL,NULL);
CREATE TABLE facts (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "facts" VALUES('server_id','55555555555555555555555555555555');
INSERT INTO "facts" VALUES('opened','1');
INSERT INTO "facts" VALUES('keys_version','d67121f4a655b945');
CREATE TABLE keys (
	digest TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	name TEXT, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	PRIMARY KEY (digest)
);
INSERT INTO "keys" VALUES('abababababababababababababababababababababababababababababababab','moss','run','laptop',5.0,NULL,NULL);
CREATE TABLE replays (
	tenant TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	digest BLOB NOT NULL, 
	kind TEXT NOT NULL, 
	thing_id TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
INSERT INTO "replays" VALUES('moss','once',X'00646967657374','execution','ex1',10.0);
CREATE TABLE sandboxes (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	shown TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	ended_because TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "sandboxes" VALUES('s','moss','{"n":1}',1.0,NULL,NULL);
CREATE INDEX executions_queued ON executions (seq) WHERE state = 'queued';
CREATE INDEX executions_running ON executions (seq) WHERE state = 'running';
CREATE INDEX executions_ended ON executions (ended_at) WHERE state = 'ended';
CREATE INDEX replays_at ON replays (at);
CREATE INDEX sandboxes_ended_at ON sandboxes (ended_at);
COMMIT;
