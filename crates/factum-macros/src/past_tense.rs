//! EVT-1: an event's name is a verb in the past tense, and its type on the wire has the same verb.

use syn::{Ident, LitStr};

use crate::attribute::Errors;
use crate::reason::check_reason;
use crate::verbs::{self, Standing};
use crate::words::{ending, pascal_case, words};

/// What of a declaration the rule looks at.
pub(crate) struct Named<'a> {
    pub(crate) ident: &'a Ident,
    /// The struct's name, without `r#`.
    pub(crate) name: String,
    /// The event type, if it is well formed.
    pub(crate) kind: Option<&'a LitStr>,
    /// The aggregate, if it is well formed.
    pub(crate) aggregate: Option<String>,
    pub(crate) exception: Exception,
}

/// `name = "…", because = "…"`: the name stays as it is, for a reason. With each its key, and its text if it has one.
#[derive(Default)]
pub(crate) struct Exception {
    pub(crate) name: Option<(Ident, Option<LitStr>)>,
    pub(crate) because: Option<(Ident, Option<LitStr>)>,
}

impl Exception {
    /// Also when half of it is missing: then that is what has to be mended.
    fn is_meant(&self) -> bool {
        self.name.is_some() || self.because.is_some()
    }

    fn check(&self, struct_name: &str, errors: &mut Errors) {
        let Exception { name, because } = self;
        match (name, because) {
            (Some((key, _)), None) => {
                let message = "`name` excepts the struct's name from the past tense, and that needs a reason: add \
                               `because = \"…\"` (EVT-1)";
                errors.push(key.span(), message);
            }
            (None, Some((key, _))) => {
                let message = format!(
                    "`because` is the reason for an exception: add `name = \"{struct_name}\"`, the name that \
                     stays as it is (EVT-1)"
                );
                errors.push(key.span(), message);
            }
            _ => {}
        }
        if let Some((_, Some(text))) = name
            && text.value() != struct_name
        {
            let message = format!(
                "the exception is for \"{}\", and the struct is called `{struct_name}`: does the reason still hold? \
                 Then write `name = \"{struct_name}\"` (EVT-1)",
                text.value()
            );
            errors.push(text.span(), message);
        }
        if let Some((_, Some(text))) = because {
            check_reason("because", text, errors);
        }
    }
}

/// Reports a name that is not in the past tense, and an event type that has another verb or version.
pub(crate) fn check(named: &Named<'_>, errors: &mut Errors) {
    named.exception.check(&named.name, errors);
    let excepted = named.exception.is_meant();
    let (name, version) = without_suffixes(words(&named.name));
    let kind = named.kind.map(|kind| (kind, kind.value()));
    let parts: Vec<&str> = match &kind {
        Some((_, kind)) => kind.split('.').collect(),
        None => Vec::new(),
    };
    let verb = past_tense(&name);
    let middle = parts.get(1).map(|middle| words(middle));
    // The type may be right where the name is not; then it says what the name should be.
    let guess = middle
        .as_ref()
        .map(|middle| with_aggregate(named.aggregate.as_deref(), middle))
        .filter(|fact| past_tense(fact).is_ok())
        .or_else(|| guess(&name))
        // Only what would pass is worth saying.
        .filter(|guess| past_tense(guess).is_ok());

    if let Err(fault) = verb
        && !excepted
    {
        errors.push(
            named.ident.span(),
            tense_message(&named.name, fault, guess.as_deref(), version.as_deref()),
        );
    }
    let (Some((literal, kind)), [aggregate, middle_text, kind_version], Some(middle)) =
        (&kind, &parts[..], &middle)
    else {
        return;
    };
    let kind_version = &kind_version[1..];
    if let Some(version) = version.filter(|version| version != kind_version) {
        let message = format!(
            "`{}` says version {version}, and \"{kind}\" says version {kind_version}: make one follow the \
             other (EVT-2)",
            named.name
        );
        errors.push(named.ident.span(), message);
    }
    // The verb and what belongs to it can't be left out of the type.
    let least = if excepted { 1 } else { verb.unwrap_or(1) };
    let shared = ending(&name, &middle.concat());
    if verb.is_err() && !excepted {
        if past_tense(&with_aggregate(Some(aggregate), middle)).is_err() {
            let example = guess.as_deref().map_or_else(
                || format!("what happened, as in \"{aggregate}.confirmed.v{kind_version}\""),
                |guess| format!("\"{}\"", kind_of(guess, aggregate, kind_version)),
            );
            let message = format!(
                "the middle part of an event type is in the past tense, and \"{middle_text}\" is not: write \
                 {example} (EVT-1)"
            );
            errors.push(literal.span(), message);
        }
    } else if shared.is_none_or(|shared| shared < least) {
        let message = format!(
            "the struct `{}` and the middle part of its type, \"{middle_text}\", name different facts: write \
             \"{}\", or rename the struct (EVT-1)",
            named.name,
            kind_of(&name, aggregate, kind_version)
        );
        errors.push(literal.span(), message);
    }
}

/// The words of a name without `Event` and `V2` at its end, in whatever order, and the version's digits.
fn without_suffixes(mut name: Vec<String>) -> (Vec<String>, Option<String>) {
    let mut version = None;
    let mut has_noun = false;
    while let [.., _, last] = &name[..] {
        let digits = last.strip_prefix('v').filter(|digits| {
            !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
        });
        if let Some(digits) = digits
            && version.is_none()
        {
            version = Some(digits.to_owned());
        } else if last == "event" && !has_noun {
            has_noun = true;
        } else {
            break;
        }
        name.pop();
    }
    (name, version)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The last word is no verb in the past tense.
    NotPast,
    /// A verb whose past looks like itself, and nothing before it says that it isn't a command: `Reset`.
    Command,
}

/// How many words at the end are the verb with what belongs to it: 1 in `OrderPaid`, 2 in `OrderPaidOut`, 3 in
/// `ItemAddedToCart`.
fn past_tense(name: &[String]) -> Result<usize, Fault> {
    let mut fault = Fault::NotPast;
    for verb in (0..name.len()).rev() {
        if !verbs::belong_to_verb(&name[verb + 1..]) {
            continue;
        }
        match verbs::standing(&name[verb]) {
            Standing::PastAfterNoun if verb == 0 => fault = Fault::Command,
            Standing::Past | Standing::PastAfterNoun => return Ok(name.len() - verb),
            Standing::Other => {}
        }
    }
    Err(fault)
}

/// The name that was likely meant.
fn guess(name: &[String]) -> Option<Vec<String>> {
    let turned = |rest: &[String], verb: String| {
        // `LogInUser` is `UserLoggedIn`.
        let particle = rest
            .first()
            .filter(|first| rest.len() > 1 && verbs::is_particle(first));
        let rest = &rest[usize::from(particle.is_some())..];
        // `AddItemToCart` is `ItemAddedToCart`.
        let phrase = rest
            .iter()
            .position(|word| verbs::is_preposition(word))
            .unwrap_or(rest.len());
        let mut turned = rest[..phrase].to_vec();
        turned.push(verb);
        turned.extend(particle.cloned());
        turned.extend_from_slice(&rest[phrase..]);
        turned
    };
    let (first, rest) = name.split_first()?;
    if !rest.is_empty() {
        if verbs::is_command(first)
            && let Some(past) = verbs::past_of_verb(first)
        {
            return Some(turned(rest, past));
        }
        if !matches!(verbs::standing(first), Standing::Other) {
            return Some(turned(rest, first.clone()));
        }
    }
    let (last, rest) = name.split_last()?;
    let past = verbs::past_of_noun(last).or_else(|| verbs::past_of_verb(last))?;
    Some(rest.iter().cloned().chain([past]).collect())
}

/// `OrderPaymentFailed` of `Order` and `payment-failed`; the aggregate is not said twice.
fn with_aggregate(aggregate: Option<&str>, middle: &[String]) -> Vec<String> {
    let aggregate = words(aggregate.unwrap_or_default());
    let said = middle.starts_with(&aggregate);
    let before = if said { Vec::new() } else { aggregate };
    before.into_iter().chain(middle.iter().cloned()).collect()
}

/// The event type for a name: without the aggregate, which the type begins with anyway.
fn kind_of(name: &[String], aggregate: &str, version: &str) -> String {
    let stem = words(aggregate);
    let middle = match name.strip_prefix(&stem[..]) {
        Some(rest) if !rest.is_empty() => rest,
        _ => name,
    };
    format!("{aggregate}.{}.v{version}", middle.join("-"))
}

fn tense_message(
    name: &str,
    fault: Fault,
    guess: Option<&[String]>,
    version: Option<&str>,
) -> String {
    if let Some(guess) = guess {
        let version = version.map_or_else(String::new, |version| format!("V{version}"));
        return format!(
            "`{name}` is not in the past tense, and an event tells what has happened: call it `{}{version}` (EVT-1)",
            pascal_case(guess)
        );
    }
    match fault {
        Fault::Command => format!(
            "`{name}` reads as a command, and an event tells what has happened: begin with what it happened \
             to, as in `PasswordReset` (EVT-1)"
        ),
        Fault::NotPast => format!(
            "`{name}` is not in the past tense, and an event tells what has happened: end the name with the \
             verb, as in `OrderConfirmed` or `OrderPaidOut`; if the name must stay, say why: \
             `#[event(name = \"{name}\", because = \"…\")]` (EVT-1)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(name: &str) -> Result<usize, Fault> {
        past_tense(&without_suffixes(words(name)).0)
    }

    #[test]
    fn names_in_the_past_tense_pass() {
        let names = "
            OrderConfirmed PaymentFailed ParcelSent InvoicePaid OrderPaidOut UserSignedUp OrderPlaced
            OrderCancelled OrderCanceled OrderShipped CustomerRegistered InvoiceIssued AccountPosted Posted
            Booked UserLoggedIn UserLoggedOut DriverCheckedIn OrderConfirmedV2 OrderConfirmedEvent
            OrderConfirmedEventV2 OrderConfirmedV2Event OrderPutOnHold InvoicePaidInFull ParcelSentBack
            TermsAgreed PriceAgreed AccountFreed LoanGuaranteed CourtDecreed MatchRefereed ClaimDisagreed
            CustomerLeft AccountClosed ContractSigned ContractDrawnUp OfferWithdrawn OfferMade OfferTaken
            ItemSold ItemBought GoodsBrought StockHeld StockWithheld OrderHeldBack InvoiceOverpaid
            InvoiceUnderpaid InvoiceRepaid LetterRewritten LetterWritten LetterResent ChangeUndone
            ChangeRedone PolicyForgiven DebtForgiven AccessForbidden AccessGiven AppointmentKept
            AppointmentMissed HouseBuilt HouseRebuilt BookRead MessageRead MailReread PasswordReset
            PriceSet LimitHit OrderSplit TaskSplitUp RoleCast ShopShut ShiftCut MemberQuit LoadShed
            WordSpread ApplicantUpset PlayerHurt PipeBurst MessageBroadcast BidderOutbid RoomSublet
            FlatLet FlatLetOut DocumentProofread PriceFell PriceFallen PriceRisen SessionBegan
            SessionBegun TripBegun RecordBroken GlassBroke SealBroken FileFound FileLost MatchWon
            MatchLost TicketBooked MeetingHeld LessonTaught LessonLearnt LessonLearned
            AnimalFed PatientBled ChildBorn CostBorne TeamLed TravellerFled SignalLit LampLit OrderDealt
            CardDealt GameDealtWith WorkerStruck StrikeStruck HoleDug PictureDrawn PictureHung
            CowMilked CarDriven CarParked PlaneFlown PlaneFlew ShirtWorn ShirtTorn OathSworn VoiceHeard
            HeardBack MoneySpent MoneyLent MoneyOwed MoneyStolen CoinSpun FieldSown FieldMown ThreadSpun
            SongSung BellRung ShipSunk WaterDrunk StoneThrown SeedSown NeedMet FeedFed SpeedExceeded
            OrderEmbedded ProceedingsEnded TestSucceeded NeedsMet FileShredded ApplicantRefused
            OrderAged ToolUsed Used BookDyed ClothTried DeliveryTried InvoiceDenied OrderQueued
            OrderQueuedV12 VATReportFiled IBANChanged UserUnsubscribed AccountUnlocked
            DeviceUnbound OrderReopened ParcelLaid ParcelLaidDown StatementSaid GoodsForegone
            RiskUnderstood RuleMisunderstood OrderOverridden OrderMistaken OrderForeseen FundsFrozen
            FundsUnfrozen FundsRefrozen TimeWound ClockRewound ContractUpheld TermsUpheld
            VersionSuperseded RequestSubmitted RequestOverseen WarrantyGone DealDone TaxWithheld
            KeyRevoked PlanChosen PlanRechosen SeatTaken SeatRetaken StoryTold StoryRetold
            ItemAddedToCart ItemRemovedFromCart OrderConfirmedByCustomer OrderAssignedToDriver PriceSetBySeller
            UserSignedUpFromCampaign UserLoggedInFromNewDevice TicketEscalatedToSecondLevel MoneyPaidBackInFull
            PaymentTimedOut SessionTimedOut QuotaExceeded DataSynced AccountOverdrawn PolicyUnderwritten
            VisitorCame VisitorWent VisitorSeen LeaseGivenUp ServerShutDown ServerBroughtUp ServerGoneDown
        ";
        let refused: Vec<_> = names
            .split_whitespace()
            .filter(|name| verdict(name).is_err())
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
        assert!(names.split_whitespace().count() > 150);
    }

    #[test]
    fn names_that_are_not_in_the_past_tense_are_found() {
        let names = "
            ConfirmOrder OrderConfirmation OrderNeed Speed OrderSeed ConfirmedOrder SetPrice SplitOrder
            ResetPassword HitLimit PaidInvoice OrderConfirm OrderConfirming OrderPayment OrderPay PayOut
            OrderEvent Event EventV2 OrderV2 OrderConfirmationEvent OrderConfirmationV2 OrderConfirmationEventV2
            NewsFeed DogBreed FlowerBed GardenBed LineRed WatershedEvent GardenWeed GoodDeed ChurchCreed
            VideoEmbed OrderProceed OrderSucceed LimitExceed OrderHundred OrderSacred UserNaked WitchWicked
            AnimalBiped CameraInfrared TestBed RiverBed PaperShred UserMoped HorseThoroughbred FamilyKindred
            DeepHatred RoughRugged GroundRagged RoadCrooked PlanReed PlanGreed PlanSteed OrderHeed UserBleed
            OrderIndeed OrderFeed OrderReseed SpeedV2 Seed Need Reset Split Set Put Read Cut SetUp ShutDown
            OrderCost PaymentRun DemandForecast KafkaOffset ReportOutput ReportInput OptionPreset
            OrderOutlet ShipOutbound OrderState OrderStatus OrderUpdate CustomerCreate CustomerDeletion
            OrderShipment OrderShipping LogOut UserLogOut UserLogin UserSignup AccountSetup InvoiceUnpaid
            OrderUnconfirmed OrderUnfinished MessageUnread PageUndefined Order Ed Bed
            OrderRent OrderConfirmedBy OrderConfirmedTo OrderConfirmedInsideShop AuctionBid GiftedUserTalented OrderConfirmedFlag
            OrderSource OrderRed TrafficLed1 UserInNeed OrderBeloved
        ";
        let missed: Vec<_> = names
            .split_whitespace()
            .filter(|name| verdict(name).is_ok())
            .collect();
        assert!(missed.is_empty(), "{missed:?}");
        assert!(names.split_whitespace().count() > 100);
    }

    #[test]
    fn the_suffixes_come_off_in_either_order_and_once() {
        for (name, rest, version) in [
            ("OrderConfirmedV2", "order confirmed", Some("2")),
            ("OrderConfirmedEvent", "order confirmed", None),
            ("OrderConfirmedEventV12", "order confirmed", Some("12")),
            ("OrderConfirmedV2Event", "order confirmed", Some("2")),
            ("OrderConfirmedV2V3", "order confirmed v2", Some("3")),
            ("OrderConfirmedEventEvent", "order confirmed event", None),
            ("OrderConfirmedVolume", "order confirmed volume", None),
            ("Event", "event", None),
            ("EventV2", "event", Some("2")),
        ] {
            let (words, found) = without_suffixes(words(name));
            assert_eq!(
                (words.join(" ").as_str(), found.as_deref()),
                (rest, version),
                "{name}"
            );
        }
    }

    #[test]
    fn the_type_has_the_words_that_the_name_ends_with() {
        for (name, kind, good) in [
            ("OrderConfirmed", "order.confirmed.v1", true),
            ("OrderConfirmed", "order.order-confirmed.v1", true),
            ("OrderConfirmedEvent", "order.confirmed.v1", true),
            ("OrderConfirmedV2", "order.confirmed.v2", true),
            ("OrderConfirmed", "order.confirmed.v2", true),
            ("Confirmed", "order.confirmed.v1", true),
            ("OrderPaidOut", "order.paid-out.v1", true),
            ("OrderPaidOut", "order.paid_out.v1", true),
            ("OrderPaidOut", "order.paidout.v1", true),
            ("OrderPutOnHold", "order.put-on-hold.v1", true),
            ("OrderPaymentFailed", "order.payment-failed.v1", true),
            ("OrderPaymentFailed", "order.failed.v1", true),
            ("PaymentFailed", "order.payment-failed.v1", true),
            ("OrderReset", "order.reset.v1", true),
            ("ItemAddedToOrder", "order.item-added-to-order.v1", true),
            ("ItemAddedToOrder", "order.added-to-order.v1", true),
            ("ItemAddedToOrder", "order.item-added.v1", false),
            ("PasswordReset", "order.password-reset.v1", true),
            ("OrderLevel2Reached", "order.level2-reached.v1", true),
            ("OrderConfirmed", "order.paid.v1", false),
            ("OrderConfirmed", "order.confirm.v1", false),
            ("OrderConfirmed", "order.firmed.v1", false),
            ("OrderConfirmed", "order.reconfirmed.v1", false),
            ("OrderPaidOut", "order.paid.v1", false),
            ("OrderPaidOut", "order.out.v1", false),
            ("OrderPaidOut", "order.id-out.v1", false),
            ("OrderConfirmedV2", "order.confirmed.v1", false),
            ("OrderConfirmedEventV3", "order.confirmed.v2", false),
            ("OrderConfirmed", "order.cancelled-confirmed.v1", false),
        ] {
            assert_eq!(faults(name, kind, false).is_empty(), good, "{name} {kind}");
        }
        // Excepted from the tense, and from nothing else.
        assert!(faults("OrderNeed", "order.need.v1", true).is_empty());
        assert!(!faults("OrderNeed", "order.wish.v1", true).is_empty());
        assert!(!faults("OrderNeedV2", "order.need.v1", true).is_empty());
    }

    fn faults(name: &str, kind: &str, excepted: bool) -> String {
        let kind = LitStr::new(kind, proc_macro2::Span::call_site());
        let named = Named {
            ident: &Ident::new(name, proc_macro2::Span::call_site()),
            name: name.to_owned(),
            kind: Some(&kind),
            aggregate: Some("Order".to_owned()),
            exception: if excepted {
                exception(name)
            } else {
                Exception::default()
            },
        };
        let mut errors = Errors::default();
        check(&named, &mut errors);
        errors
            .into_compile_errors()
            .map(|errors| errors.to_string())
            .unwrap_or_default()
    }

    fn exception(name: &str) -> Exception {
        let text = |key: &str, text: &str| {
            let span = proc_macro2::Span::call_site();
            Some((Ident::new(key, span), Some(LitStr::new(text, span))))
        };
        Exception {
            name: text("name", name),
            because: text("because", "the trade has always said so"),
        }
    }

    #[test]
    fn a_type_that_is_wrong_is_told_the_right_one() {
        for (name, kind, told) in [
            ("OrderConfirmed", "order.paid.v1", "order.confirmed.v1"),
            ("OrderPaidOut", "order.paid.v3", "order.paid-out.v3"),
            (
                "PaymentFailed",
                "order.failure.v1",
                "order.payment-failed.v1",
            ),
            ("ConfirmOrder", "order.confirm.v2", "order.confirmed.v2"),
            (
                "ConfirmOrder",
                "order.confirm.v2",
                "call it `OrderConfirmed`",
            ),
            (
                "OrderStatement",
                "order.confirmed.v1",
                "call it `OrderConfirmed`",
            ),
            (
                "OrderStatement",
                "order.payment-failed.v1",
                "call it `OrderPaymentFailed`",
            ),
            (
                "ConfirmOrderV2",
                "order.confirm.v2",
                "call it `OrderConfirmedV2`",
            ),
            ("Split", "order.statement.v1", "reads as a command"),
        ] {
            let faults = faults(name, kind, false);
            assert!(faults.contains(told), "{name} {kind}: {faults}");
        }
    }

    #[test]
    fn a_guess_is_made_where_it_is_sound() {
        for (name, expected) in [
            ("ConfirmOrder", Some("OrderConfirmed")),
            ("OrderConfirmation", Some("OrderConfirmed")),
            ("ConfirmedOrder", Some("OrderConfirmed")),
            ("PaidInvoice", Some("InvoicePaid")),
            ("SetPrice", Some("PriceSet")),
            ("SendParcel", Some("ParcelSent")),
            ("LogInUser", Some("UserLoggedIn")),
            ("OrderPayment", Some("OrderPaid")),
            ("OrderConfirm", Some("OrderConfirmed")),
            ("OrderShipment", Some("OrderShipped")),
            ("CancelOrderItem", Some("OrderItemCancelled")),
            ("CustomerCreate", Some("CustomerCreated")),
            ("ConfirmPayment", Some("PaymentConfirmed")),
            ("PlaceOrder", Some("OrderPlaced")),
            ("AddItemToCart", Some("ItemAddedToCart")),
            ("OrderNeed", None),
            ("Speed", None),
            ("OrderStatus", None),
        ] {
            let found = guess(&words(name)).map(|guess| pascal_case(&guess));
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }
}
