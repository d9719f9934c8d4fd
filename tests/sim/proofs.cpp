// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/proofs.hpp"

#include <map>
#include <span>
#include <utility>

#include "rdma/core/auth/mac.hpp"

namespace sim {
namespace {

class SimKeys final : public rtrs::auth::ServerKeys {
 public:
  SimKeys(World& world, bool foreign) : world_{world}, foreign_{foreign} {}

  rtrs::auth::ServerKey find(std::string_view key_name) override {
    rtrs::Identity user;
    user.how = rtrs::Identity::How::proof;
    user.name = user.key = key_name;
    const auto& secret = secrets_.try_emplace(user.name, secret_of(user.name, foreign_)).first;
    return {rtrs::wire::bytes_of(secret->second), std::move(user), /*made_up=*/false};
  }
  rtrs::auth::Nonce nonce() override { return draw_nonce(world_.rng()); }

 private:
  World& world_;
  bool foreign_;
  std::map<std::string, Secret> secrets_;
};

}  // namespace

std::string user_of(NodeId client) { return "user" + std::to_string(client); }

Secret secret_of(const std::string& user, bool foreign) {
  const std::string text = user + (foreign ? " elsewhere" : "");
  return rtrs::auth::sha256({std::as_bytes(std::span{text})});
}

rtrs::auth::Nonce draw_nonce(Rng& rng) {
  rtrs::auth::Nonce nonce;
  for (auto& byte : nonce) byte = static_cast<std::uint8_t>(rng.next());
  return nonce;
}

std::shared_ptr<rtrs::auth::ServerKeys> make_keys(World& world, bool foreign) {
  return std::make_shared<SimKeys>(world, foreign);
}

}  // namespace sim
