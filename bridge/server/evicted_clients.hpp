// SPDX-License-Identifier: BSD-3-Clause
// Clients that an operator has put out, and who may not come in again by themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/server/rights.hpp"

namespace rnbd {

struct EvictedClient {
  std::string who;         ///< as who_is() names it
  std::string session;     ///< that was ended, for people
  std::int64_t until = 0;  ///< Units: seconds since 1970. 0: until it is let in again

  friend bool operator==(const EvictedClient&, const EvictedClient&) = default;
};

/// A client's proven name, or else `@` and the rtrs::normal_host() that it comes from. "": there is
/// neither.
std::string who_is(const User& user);

/// The clients that open nothing now. It does not know the devices that they have open.
///
/// Threads: any.
class EvictedClients {
 public:
  struct Keeper {
    std::function<std::int64_t()> now;  ///< Units: as EvictedClient::until
    /// Keeps the list beyond the end of the server, durably. May block. Errors: the obstacle.
    std::function<tl::expected<void, std::string>(const std::string& list)> save;
  };

  /// `list`: as it was saved. Before the first client.
  ///
  /// Errors: the mistake in the list.
  tl::expected<void, std::string> keep(Keeper keeper, std::string_view list);

  /// Puts a client out, in place of an earlier time of the same client.
  ///
  /// Errors: the obstacle to keeping that; it is out all the same.
  tl::expected<void, std::string> add(EvictedClient client);
  /// Lets clients in again, all of them for "all". Else the one of this name or `@` address is
  /// meant, or else those whose sessions were called so. Or else the one of this address, without
  /// `@` or with a port.
  ///
  /// Errors: the obstacle to keeping that. Empty: nobody of that name is out.
  tl::expected<std::vector<EvictedClient>, std::string> readmit(std::string_view name);
  bool contains(const User& user) const;
  std::vector<EvictedClient> all() const;

 private:
  tl::expected<void, std::string> save(std::vector<EvictedClient> next);
  bool is_over(const EvictedClient& client) const;

  mutable std::mutex mutex_;
  std::mutex saving_;                   ///< held over a change of the list, before mutex_
  Keeper keeper_;                       ///< set once
  std::vector<EvictedClient> clients_;  ///< guarded by mutex_
};

}  // namespace rnbd
