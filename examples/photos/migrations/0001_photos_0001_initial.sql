-- photos.0001_initial, by manage.py shardmigrations
-- shardctl: key "photos_outbox"."user_id" check
-- shardctl: key "photos_user"."id" check
-- shardctl: key "photos_follower"."user_id" check
-- shardctl: key "photos_following"."user_id" check
-- shardctl: key "photos_like"."user_id" check
-- shardctl: key "photos_photo"."user_id" check

--
-- Create model Outbox
--
CREATE TABLE "photos_outbox" ("id" bigint NOT NULL PRIMARY KEY DEFAULT next_id(), "user_id" bigint NOT NULL, "other_id" bigint NOT NULL, "end" varchar(9) NOT NULL);
--
-- Create model User
--
CREATE TABLE "photos_user" ("id" bigint NOT NULL PRIMARY KEY DEFAULT next_id(), "name" varchar(150) NOT NULL, "deleted" boolean NOT NULL);
--
-- Create model Account
--
-- (no-op)
--
-- Create model Follower
--
CREATE TABLE "photos_follower" ("id" bigint NOT NULL PRIMARY KEY DEFAULT next_id(), "user_id" bigint NOT NULL, "other_id" bigint NOT NULL, "follows" integer NOT NULL, "blocks" integer NOT NULL, "blocked" boolean GENERATED ALWAYS AS (MOD("blocks", 2) = 1) STORED, "live" boolean GENERATED ALWAYS AS ((MOD("follows", 2) = 1 AND MOD("blocks", 2) = 0)) STORED);
--
-- Create model Following
--
CREATE TABLE "photos_following" ("id" bigint NOT NULL PRIMARY KEY DEFAULT next_id(), "user_id" bigint NOT NULL, "other_id" bigint NOT NULL, "follows" integer NOT NULL, "blocks" integer NOT NULL, "blocked" boolean GENERATED ALWAYS AS (MOD("blocks", 2) = 1) STORED, "live" boolean GENERATED ALWAYS AS ((MOD("follows", 2) = 1 AND MOD("blocks", 2) = 0)) STORED);
--
-- Create model Like
--
CREATE TABLE "photos_like" ("id" bigint NOT NULL PRIMARY KEY DEFAULT next_id(), "user_id" bigint NOT NULL, "owner_id" bigint NOT NULL, "photo_id" bigint NOT NULL, CONSTRAINT "one_like" UNIQUE ("user_id", "photo_id"));
--
-- Create model Photo
--
CREATE TABLE "photos_photo" ("id" bigint NOT NULL PRIMARY KEY DEFAULT next_id(), "user_id" bigint NOT NULL, "by" varchar(150) NOT NULL, "caption" varchar(200) NOT NULL);
ALTER TABLE "photos_follower" ADD CONSTRAINT "one_follower" UNIQUE ("user_id", "other_id");
ALTER TABLE "photos_following" ADD CONSTRAINT "one_following" UNIQUE ("user_id", "other_id");
CREATE INDEX "photo_of_user" ON "photos_photo" ("user_id", "id");
