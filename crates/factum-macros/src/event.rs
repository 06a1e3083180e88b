//! `derive(Event)`

use heck::ToSnakeCase;
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{DeriveInput, Field, Ident, LitStr, Path, Type, parse_quote};

use crate::attribute::{Errors, arguments};
use crate::fields::{
    Carrier, Claims, WireField, check_contents, in_its_own_scope, named_fields, refuse_equal_names,
};
use crate::hook::Hook;
use crate::names::{ENVELOPE_FIELDS, check_aggregate, check_kind, check_topic, names_aggregate};
use crate::past_tense;

pub(crate) fn derive(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let declaration = Declaration::read(input, &mut errors);
    let fields = named_fields(input, "an event", &mut errors);
    let fields = EventFields::read(input, &fields, &mut errors);
    let carrier = Carrier::Event {
        ident: &input.ident,
        topic: &declaration.topic,
        restricted: declaration.restricted,
    };
    let assertions = check_contents(&fields.all, &carrier, &mut errors);

    match errors.into_compile_errors() {
        None => declaration.implement(input, &fields, &assertions),
        Some(errors) => {
            let empty = declaration.implement_emptily(input, &assertions);
            quote! { #errors #empty }
        }
    }
}

/// What stands in `#[event(kind = "…", aggregate = "…", topic = "…")]`. After a mistake, empty.
struct Declaration {
    krate: Path,
    kind: String,
    aggregate: String,
    topic: String,
    restricted: bool,
    validate: Hook,
    unlocked: bool,
    /// The older version, by its Rust name.
    supersedes: Option<Path>,
}

impl Declaration {
    fn read(input: &DeriveInput, errors: &mut Errors) -> Declaration {
        let mut krate: Path = parse_quote!(::factum);
        let mut kind = None;
        let mut aggregate = None;
        let mut topic = None;
        let mut restricted = false;
        let mut validate = Hook::default();
        let mut exception = past_tense::Exception::default();
        let mut unlocked = false;
        let mut supersedes = None;
        let mut seen = Vec::new();
        let allowed = [
            "kind",
            "aggregate",
            "topic",
            "restricted",
            "unlocked",
            "name",
            "because",
            "supersedes",
            "validate",
            "crate",
        ];
        let arguments = arguments(&input.attrs, "event", &allowed, errors);
        for argument in arguments.good {
            let key = argument.key.to_string();
            if key == "restricted" || key == "unlocked" {
                argument.check_flag(errors);
                restricted |= key == "restricted";
                unlocked |= key == "unlocked";
                continue;
            }
            if key == "validate" {
                validate = Hook::read(&argument, errors);
                continue;
            }
            if key == "supersedes" {
                let example = format!("{}V1", input.ident);
                supersedes = argument.rust_path(&example, errors);
                if supersedes
                    .as_ref()
                    .is_some_and(|path| path.is_ident(&input.ident))
                {
                    let message = "an event doesn't supersede itself: name the struct of its older version (EVT-3)";
                    errors.push(supersedes.span(), message);
                }
                continue;
            }
            let text = argument.text(errors);
            match key.as_str() {
                "kind" => kind = text.filter(|text| good(text, check_kind, errors)),
                "aggregate" => aggregate = text.filter(|text| good(text, check_aggregate, errors)),
                "topic" => topic = text.filter(|text| good(text, check_topic, errors)),
                "name" => exception.name = Some((argument.key.clone(), text)),
                "because" => exception.because = Some((argument.key.clone(), text)),
                _ => {
                    if let Some(path) = text.and_then(|text| crate_path(&text, errors)) {
                        krate = path;
                    }
                }
            }
            seen.push(key);
        }
        for (key, example) in [
            ("kind", "kind = \"order.confirmed.v1\"` (EVT-2)"),
            ("aggregate", "aggregate = \"Order\"` (EVT-2)"),
            ("topic", "topic = \"orders.confirmed\"` (OBX-3)"),
        ] {
            if !arguments.unreadable && !seen.iter().any(|seen| seen == key) {
                let message = format!("`#[event(…)]` lacks `{key}`: add it, such as `{example}");
                errors.push(input.ident.span(), message);
            }
        }
        if let (Some(kind), Some(aggregate)) = (&kind, &aggregate)
            && !names_aggregate(&kind.value(), &aggregate.value())
        {
            let message = format!(
                "the event type begins with the aggregate, and \"{}\" is not \"{}\": make one follow \
                 the other (EVT-2)",
                kind.value().split('.').next().unwrap_or_default(),
                aggregate.value(),
            );
            errors.push(kind.span(), message);
        }
        let named = past_tense::Named {
            ident: &input.ident,
            name: input.ident.unraw().to_string(),
            kind: kind.as_ref(),
            aggregate: aggregate.as_ref().map(LitStr::value),
            exception,
        };
        past_tense::check(&named, errors);
        let value = |text: Option<LitStr>| text.map(|text| text.value()).unwrap_or_default();
        Declaration {
            krate,
            kind: value(kind),
            aggregate: value(aggregate),
            topic: value(topic),
            // Nobody knows what an attribute holds that can't be read.
            restricted: restricted || arguments.unreadable,
            unlocked,
            validate,
            supersedes,
        }
    }

    fn implement(
        &self,
        input: &DeriveInput,
        fields: &EventFields<'_>,
        assertions: &TokenStream,
    ) -> TokenStream {
        let aggregate_id = match &fields.aggregate_id {
            Some(field) => {
                let (ident, ty) = (field.ident, field.ty);
                quote::quote_spanned! { ty.span() =>
                    <#ty as __factum::ToAggregateId>::to_aggregate_id(&self.#ident)
                }
            }
            // Not reached: its absence is a mistake, and mistakes are reported before.
            None => quote! { ::core::unreachable!() },
        };
        // A field called `aggregate_id` is the envelope's own, which the envelope writes.
        let is_envelopes_own = |field: &WireField<'_>| field.name == "aggregateId";
        let at_envelopes_id = quote! { __place.field("aggregateId") };
        let writes = fields.all.iter().map(|field| {
            if !is_envelopes_own(field) {
                return field.write();
            }
            let (ident, constraints) = (field.ident, &field.constraints);
            if constraints.is_empty() {
                return TokenStream::new();
            }
            let checks = constraints.checks(field.ty, &quote! { &self.#ident }, &at_envelopes_id);
            quote! {{ let __place = __out.place(); #checks }}
        });
        let reads = fields.all.iter().map(|field| {
            if is_envelopes_own(field) {
                let (ident, ty, constraints) = (field.ident, field.ty, &field.constraints);
                if constraints.is_empty() {
                    return quote! { #ident: __from.aggregate_id::<#ty>()?, };
                }
                let checks = constraints.checks(ty, &quote! { &__read }, &at_envelopes_id);
                quote! {
                    #ident: {
                        let __read = __from.aggregate_id::<#ty>()?;
                        let __place = __from.place();
                        #checks
                        __read
                    },
                }
            } else {
                field.read()
            }
        });
        let name = input.ident.unraw().to_string();
        let Declaration {
            kind,
            aggregate,
            topic,
            restricted,
            ..
        } = self;
        let key = fields.aggregate_id.as_ref().map(|field| &field.name);
        let supersedes = match &self.supersedes {
            None => quote! { ::core::option::Option::None },
            Some(older) => quote! {
                ::core::option::Option::Some(::std::string::String::from(
                    <#older as __factum::Event>::EVENT_TYPE,
                ))
            },
        };
        let shapes = fields.all.iter().map(|field| {
            let shape = field.shape();
            if is_envelopes_own(field) {
                let (name, ty) = (&field.name, field.ty);
                let shape = field.constraints.narrow(quote! {
                    __factum::in_envelope(<#ty as __factum::Snapshot>::shape(__shapes))
                });
                quote! { __factum::FieldShape::new(#name, #shape), }
            } else {
                shape
            }
        });
        let contract = quote! {
            let mut __collected = <__factum::Shapes as ::core::default::Default>::default();
            let __shapes = &mut __collected;
            let __fields = ::std::vec![#(#shapes)*];
            __factum::Contract {
                event_type: ::std::string::String::from(#kind),
                aggregate_type: ::std::string::String::from(#aggregate),
                topic: ::std::string::String::from(#topic),
                restricted: #restricted,
                name: ::std::string::String::from(#name),
                supersedes: #supersedes,
                aggregate_id: ::std::string::String::from(#key),
                fields: __fields,
                definitions: __collected.into_definitions(),
            }
        };
        let function = self.validate.constant(&input.ident);
        let validated = self.validate.check_written();
        let read = self.validate.check_read(&quote! { Self { #(#reads)* } });
        let rules = fields.all.iter().map(|field| {
            let as_text = field.as_text || is_envelopes_own(field);
            field.constraints.statics(field.ty, as_text)
        });
        let code = Code {
            beside: quote! { #(#rules)* #function #assertions },
            contract,
            aggregate_id,
            write: quote! { #(#writes)* #validated ::core::result::Result::Ok(()) },
            read,
            versions: self.versions(&input.ident),
        };
        let implementation = self.wrap(input, &code);
        let gate = self.gate(input, fields);
        quote! { #implementation #gate }
    }

    /// The test that compares the contract with its lock file (EVT-3). It stands beside the struct and not in the
    /// implementation's own scope: the harness runs no test that stands within a constant. Nor does it within a function;
    /// rustc warns there (`unnameable_test_items`), and rightly: nothing would compare the contract.
    fn gate(&self, input: &DeriveInput, fields: &EventFields<'_>) -> TokenStream {
        if self.unlocked {
            return TokenStream::new();
        }
        let (krate, ident) = (&self.krate, &input.ident);
        // `line!()` says where its tokens come from.
        let line_of = |span: Span| quote::quote_spanned! { span => ::core::line!() };
        let line = line_of(ident.span());
        let lines = fields.all.iter().map(|field| {
            let (name, line) = (&field.name, line_of(field.ident.span()));
            quote! { (#name, #line) }
        });
        let name = format!("contract_of_{}", ident.unraw().to_string().to_snake_case());
        let name = Ident::new(&name, ident.span());
        quote! {
            #[cfg(test)]
            #[allow(non_snake_case, clippy::tests_outside_test_module)]
            #[::core::prelude::v1::test]
            fn #name() {
                #krate::__private::check::<#ident>(&#krate::__private::Place {
                    crate_folder: ::core::option_env!("CARGO_MANIFEST_DIR"),
                    file: ::core::file!(),
                    line: #line,
                    fields: &[#(#lines),*],
                });
            }
        }
    }

    /// An implementation that type-checks and never runs, since the mistake stops the build: so that
    /// nothing else complains that the struct is no event. What only the types show is reported all the same.
    fn implement_emptily(&self, input: &DeriveInput, assertions: &TokenStream) -> TokenStream {
        if !input.generics.params.is_empty() {
            return TokenStream::new();
        }
        let body = quote! { ::core::unreachable!() };
        let code = Code {
            beside: assertions.clone(),
            contract: body.clone(),
            aggregate_id: body.clone(),
            write: body.clone(),
            read: body,
            versions: TokenStream::new(),
        };
        self.wrap(input, &code)
    }

    /// What links an event to the version that it supersedes. Every mistake is marked at that version's name.
    fn versions(&self, ident: &syn::Ident) -> TokenStream {
        let Some(older) = &self.supersedes else {
            return TokenStream::new();
        };
        let check = quote_spanned! { older.span() =>
            const _: () = __factum::check_supersedes(
                <#ident as __factum::Event>::EVENT_TYPE,
                <#ident as __factum::Event>::AGGREGATE_TYPE,
                <#older as __factum::Event>::EVENT_TYPE,
                <#older as __factum::Event>::AGGREGATE_TYPE,
            );
        };
        let visit = quote_spanned! { older.span() =>
            __factum::visit_superseded::<Self, #older, __Visitor>(__envelope, __visitor)
        };
        let superseded = quote_spanned! { older.span() =>
            __factum::superseded::<Self, #older>()
        };
        quote! {
            fn visit_superseded<__Visitor: __factum::VersionVisitor>(
                __envelope: &__factum::Envelope<Self>,
                __visitor: &mut __Visitor,
            ) -> ::core::result::Result<(), __Visitor::Error> {
                #check
                #visit
            }

            fn superseded() -> ::std::vec::Vec<__factum::Superseded<Self>> {
                #superseded
            }
        }
    }

    fn wrap(&self, input: &DeriveInput, code: &Code) -> TokenStream {
        let Code {
            beside,
            contract,
            aggregate_id,
            write,
            read,
            versions,
        } = code;
        let Declaration {
            krate,
            kind,
            aggregate,
            topic,
            ..
        } = self;
        let ident = &input.ident;
        let implementation = quote! {
            #beside

            #[automatically_derived]
            impl __factum::Event for #ident {
                const EVENT_TYPE: &'static str = #kind;
                const AGGREGATE_TYPE: &'static str = #aggregate;
                const TOPIC: &'static str = #topic;

                fn contract() -> __factum::Contract {
                    #contract
                }

                fn aggregate_id(
                    &self,
                ) -> ::core::result::Result<__factum::AggregateId, __factum::AggregateIdError> {
                    #aggregate_id
                }

                fn write_fields(
                    &self,
                    __out: &mut __factum::ObjectWriter<'_>,
                ) -> ::core::result::Result<(), __factum::EncodeError> {
                    #write
                }

                fn read_fields(
                    __from: &__factum::ObjectReader<'_>,
                ) -> ::core::result::Result<Self, __factum::Poison> {
                    #read
                }

                #versions
            }
        };
        in_its_own_scope(krate, &implementation)
    }
}

/// The code of an implementation.
struct Code {
    /// What stands beside it: the constraints, and what only the types show.
    beside: TokenStream,
    contract: TokenStream,
    aggregate_id: TokenStream,
    write: TokenStream,
    read: TokenStream,
    /// The functions that link it to the version that it supersedes, if any.
    versions: TokenStream,
}

fn good(
    text: &LitStr,
    check: impl Fn(&str) -> Result<(), &'static str>,
    errors: &mut Errors,
) -> bool {
    match check(&text.value()) {
        Ok(()) => true,
        Err(message) => {
            errors.push(text.span(), message);
            false
        }
    }
}

/// The path of `crate = "…"`.
pub(crate) fn crate_path(text: &LitStr, errors: &mut Errors) -> Option<Path> {
    match text.parse() {
        Ok(path) => Some(path),
        Err(_) => {
            errors.push(
                text.span(),
                "`crate` takes the path of the crate: `crate = \"::factum\"`",
            );
            None
        }
    }
}

struct EventFields<'a> {
    all: Vec<WireField<'a>>,
    aggregate_id: Option<WireField<'a>>,
}

impl<'a> EventFields<'a> {
    fn read(input: &DeriveInput, fields: &[&'a Field], errors: &mut Errors) -> EventFields<'a> {
        let mut all = Vec::new();
        let mut aggregate_id: Option<WireField<'a>> = None;
        for field in fields {
            let claims = Claims::read(field, "event", errors);
            let mark = claims.aggregate_id;
            let Some(wire) = WireField::new(field, claims) else {
                continue;
            };
            if let Some(mark) = mark {
                if is_option(&field.ty) {
                    let message = "the aggregate id is the key of every record and is never absent: \
                                   remove `Option` (PROD-2)";
                    errors.push(field.ty.span(), message);
                }
                if let Some(first) = &aggregate_id {
                    let message = format!(
                        "`{}` is the aggregate id already: an event has one (PROD-2)",
                        first.ident.unraw()
                    );
                    errors.push(mark, message);
                } else {
                    aggregate_id = WireField::new(field, Claims::default());
                }
            }
            let is_envelopes_own = mark.is_some() && wire.name == "aggregateId";
            if is_envelopes_own {
                wire.constraints.refuse_text(errors);
            }
            if ENVELOPE_FIELDS.contains(&wire.name.as_str()) && !is_envelopes_own {
                let message = if wire.name == "aggregateId" {
                    "`aggregateId` is the envelope's: mark the field with `#[event(aggregate_id)]`, \
                     or rename it (EVT-2)"
                        .to_owned()
                } else {
                    format!(
                        "`{}` is the envelope's, which adds it: remove or rename the field (EVT-2)",
                        wire.name
                    )
                };
                errors.push(wire.ident.span(), message);
            }
            all.push(wire);
        }
        refuse_equal_names(&all, errors);
        if aggregate_id.is_none() && !fields.is_empty() {
            let message = "an event has an aggregate id, the key of its record: mark its field with \
                           `#[event(aggregate_id)]` (PROD-2)";
            errors.push(input.ident.span(), message);
        }
        EventFields { all, aggregate_id }
    }
}

fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|s| s.ident == "Option"))
}
