// SPDX-License-Identifier: BSD-3-Clause
// Names of images of a Ceph cluster.
#include "bridge/backend/rbd_name.hpp"

#include <doctest/doctest.h>

#include "bridge/backend/backend.hpp"

namespace rbd_name_test {

using rnbd::parse_rbd_name;

TEST_CASE("rbd: pool and image suffice") {
  const auto name = parse_rbd_name("rbd/disk0");
  REQUIRE(name);
  CHECK(name->pool == "rbd");
  CHECK(name->image == "disk0");
  CHECK(name->space.empty());
  CHECK(name->snapshot.empty());
  CHECK(name->conf.empty());
  CHECK(name->id.empty());
}

TEST_CASE("rbd: namespace, snapshot and options are told apart") {
  const auto name = parse_rbd_name("pool/space/disk0@monday,id=gateway,conf=/etc/ceph/b.conf");
  REQUIRE(name);
  CHECK(name->pool == "pool");
  CHECK(name->space == "space");
  CHECK(name->image == "disk0");
  CHECK(name->snapshot == "monday");
  CHECK(name->id == "gateway");
  CHECK(name->conf == "/etc/ceph/b.conf");
}

TEST_CASE("rbd: what lacks a part, or has one too many, is refused") {
  for (const char* text :
       {"", "disk0", "/disk0", "rbd/", "rbd//disk0", "a/b/c/d", "rbd/@monday", "rbd/disk0@",
        "rbd/disk0,", "rbd/disk0,id=", "rbd/disk0,size=3", ",id=x"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_rbd_name(text));
  }
}

TEST_CASE("rbd: images are shared by servers, and nothing else is") {
  CHECK(rnbd::is_shared("rbd:pool/disk0"));
  for (const char* text :
       {"/srv/rbd:pool", "file:/srv/disk0.img", "memory:1M", "nbd://host/rbd:"}) {
    CAPTURE(text);
    CHECK_FALSE(rnbd::is_shared(text));
  }
}

}  // namespace rbd_name_test
