// SPDX-License-Identifier: Apache-2.0
// A folder finds its own handlers among others'. The runtime asks handlers by virtual functions and never what class
// they are; who put one on a weight or into a slot asks for it by the name that its class has alone:
//
//   class Fp8Handler final : public OpHandler {
//    public:
//     static constexpr std::string_view kKind = "fp8::quant::Fp8Handler";
//     std::string_view kind() const override { return kKind; }
//   };
//   Fp8Handler* handler = handler_as<Fp8Handler>(tag->handler.get());      null: another one's
//
// A name and no address, which would be another one in each shared library.
#pragma once
#include <string_view>
#include <type_traits>

namespace fp8::runtime {

/// `handler` as a Handler: null where it is null or of another kind. Base: OpHandler or ModuleHandler, may be const.
template <class Handler, class Base>
std::conditional_t<std::is_const_v<Base>, const Handler*, Handler*> handler_as(Base* handler) {
  using Found = std::conditional_t<std::is_const_v<Base>, const Handler*, Handler*>;
  return handler != nullptr && handler->kind() == Handler::kKind ? static_cast<Found>(handler) : nullptr;
}

}  // namespace fp8::runtime
